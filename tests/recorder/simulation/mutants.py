"""Defects to plant in the recorder: the simulation has to find each."""

from tests.mutants import Mutant

_DAEMON = "tape2048_recorder.daemon"
_RECORDING = "tape2048_recorder.recording"

MUTANTS = {
    "the header is not flushed": Mutant(f"{_RECORDING}.publish:_finish_files", "world.os.fsync(fd)", "pass"),
    "names are not flushed": Mutant("tape2048.files.durable:fsync_path", "os.fsync(fd)", "pass"),
    "the journal's header is not flushed": Mutant(
        f"{_RECORDING}.partial:Journal.__init__", "world.os.fsync(self._fd)", "pass"
    ),
    "a session that had just begun stays": Mutant(
        f"{_RECORDING}.publish:recover", "if not _has_just_begun(world, staging):", "if True:"
    ),
    "a flush that failed is forgotten": Mutant(
        f"{_RECORDING}.partial:PartialSession.flush", "self._flushed = False", "pass"
    ),
    "the name before the manifest": Mutant(
        f"{_RECORDING}.publish:publish_steps",
        "size = yield from _finish_files(world, staging / STAGED, facts, blocks, extra, given=given)\n"
        "        yield 0.0\n"
        "        path: Path = world.files.rename_numbered(staging / STAGED, out_dir / facts.name)",
        "path: Path = world.files.rename_numbered(staging / STAGED, out_dir / facts.name)\n"
        "        size = yield from _finish_files(world, path, facts, blocks, extra, given=given)",
    ),
    "confirmed before it is written": Mutant(
        f"{_RECORDING}.partial:PartialSession.confirm", "self.journal.append(block)", "pass"
    ),
    "rows given out twice": Mutant(
        f"{_RECORDING}.partial:PartialSession.release",
        "if first_row + self.writing.pop(first_row) == self.rows_reserved:",
        "if self.writing.pop(first_row):",
    ),
    "holes stay": Mutant(f"{_RECORDING}.publish:_has_holes", "return any(", "return False and any("),
    "a lost reload": Mutant(
        f"{_DAEMON}.daemon:Reload.due",
        "return self._asked and now >= self._next",
        "asked, self._asked = self._asked, False\n    return asked and now >= self._next",
    ),
    "a double rotation": Mutant(f"{_DAEMON}.daemon:Rotations.tick", "self._flushing.clear()", "pass"),
    "a rotation that is done too early": Mutant(
        f"{_RECORDING}.recording:Recording.close_open",
        "[*self._closing, *self.publisher.pending]",
        "self._closing",
    ),
    "a missed death": Mutant(
        f"{_DAEMON}.daemon:Daemon._on_death", "self.recording.release(worker.range)", "pass"
    ),
    "a clock that steps back": Mutant(
        "tape2048_recorder.recording.world:World.now", "self.time.monotonic()", "self.time.time()"
    ),
    "an id handed out twice": Mutant(
        f"{_DAEMON}.instance:Ledger.release",
        "self._held.pop(worker, deque())",
        "self._held.get(worker, deque())",
    ),
    "ids repeated after a crash": Mutant(
        f"{_DAEMON}.instance:GameProgress.cover",
        "GameState(self.state.seed, next_id + IDS_AHEAD, lease=self.state.lease)",
        "GameState(self.state.seed, next_id, lease=self.state.lease)",
    ),
    "a full disk ends publishing": Mutant(
        f"{_RECORDING}.publish:Publisher._publish", "final, error = self._gives_up, full", "error = full"
    ),
    "a hung worker stays": Mutant(f"{_DAEMON}.supervisor:Watch._look_at", "silent_s >= silence_s", "False"),
}
