"""Recorded against unrecorded play, whole recorders against bare loops on the same cores.

::

    python -m tests.bench.recording [--players random greedy ntuple:look=0] [--rounds 5] [--seconds 8]
    python -m tests.bench.recording --storage tape
    python -m tests.bench.recording --columns "values loss" --players ntuple
    python -m tests.bench.recording --loops [--seconds 0.3] [--rounds 15] [--columns "values loss"]

**Ratio.** A round plays for some seconds in bare processes, one for each worker, that keep no rows. Then a
recorder with as many workers records into memory (``/dev/shm``). Its rate is each worker's rows between its
first and its last block, so neither start nor drain counts, over the wall time between them, summed.
Sessions are deleted as they appear, by a thread of the recorder's process: its CPU time counts against the
recorder, some 3 ns a row. With ``--keep`` they go at the end of each round: no such cost, but memory for them
all (28 bytes a row).

Memory that a virtual machine has not touched before comes slowly (0.4 GB/s here, against 3 GB/s after):
a few GB are written and deleted before the first round.

With ``--columns``, a recorder with these columns is compared with a recorder without them, in rows per second
of CPU time.

With ``--loops``, only the compiled loops are compared, in slices of one thread's CPU time: other processes
disturb them least.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tape2048_recorder.daemon.supervisor import WorkerPlace

from .figures import CHECKOUT, ROUNDS_MIN, TREES, Benchmark, Figure, alternate, in_turns, median_of, ratios

#: The players that are measured. Playing at 25M steps/s and more, the first two are limited by memory.
PLAYERS = (
    "random", "greedy", "expectimax:depth=1", "ntuple:look=0", "ntuple",
    "ntuple:look=16,look_margin=0",
)  # fmt: skip
TAPE_PLAYERS = ("random", "greedy", "ntuple:look=0", "ntuple")

#: Blocks of each worker that a rate is told from.
BLOCKS_MIN = 3

#: What a bare process plays between two looks at the clock: 20 to 100 ms.
CHUNK_GAMES = {"random": 10_000, "greedy": 5_000, "expectimax:depth=1": 20, "ntuple:look=0": 20}


class Recorded(NamedTuple):
    """One recorder's rate and what it cost, start and drain left out."""

    rows_per_s: float
    worker_ns: float  # CPU time a row, all workers
    daemon_ns: float  # the daemon's loop
    publish_ns: float  # its publishing thread
    delete_ns: float  # the benchmark's own: sessions are deleted as they appear
    sessions: int

    @property
    def cpu_ns(self) -> float:
        """CPU time a row, without the benchmark's own."""
        return self.worker_ns + self.daemon_ns + self.publish_ns


def play_bare(player: str, seconds: float, workers: int) -> tuple[float, float]:
    """Steps a second of as many bare loops as there would be workers, and their CPU time a step in ns."""
    children = [_child("play", player=player, index=index) for index in range(workers)]
    try:
        for child in children:
            if child.stdout.readline() != b"ready\n":
                raise RuntimeError("a bare loop did not start")
        for child in children:
            child.stdin.write(f"{seconds}\n".encode())
            child.stdin.flush()
        rates, cpu_ns = zip(*(json.loads(child.communicate()[0]) for child in children), strict=True)
        return sum(rates), sum(cpu_ns) / workers
    finally:
        for child in children:
            child.kill()
            child.communicate()


def record(player: str, seconds: float, workers: int, out_dir: Path, **how: Any) -> Recorded:
    """What a recorder does in about this many seconds of recording.

    ``how``: ``block_rows``; ``storage``; ``columns``; ``keep`` (delete sessions at the end).
    """
    child = _child("record", player=player, seconds=seconds, workers=workers, out_dir=str(out_dir), how=how)
    try:
        output, _ = child.communicate()
    except BaseException:
        child.kill()  # its workers end with it
        child.communicate()
        raise
    if child.returncode != 0:
        raise RuntimeError(f"the recorder ended with {child.returncode}")
    return Recorded(*json.loads(output))


def _child(what: str, **arguments: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [TREES, os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.recording", f"--child-{what}", json.dumps(arguments)],
        cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def _play_child(player: str, index: int) -> None:
    import numpy as np

    from tape2048_recorder.game.game_loop import play_unrecorded
    from tape2048_recorder.game.rng import game_seeds
    from tape2048_recorder.players.options import make_player
    from tape2048_recorder.record_options import split_player

    name, args = split_player(player)
    compiled = make_player(name, args or {})
    games = CHUNK_GAMES.get(player, 1)
    fresh, scores, highest = np.empty(0, np.uint64), np.empty(games, np.uint64), np.empty(games, np.uint8)
    play_unrecorded(compiled, fresh, np.zeros(1, dtype=np.uint64), scores, highest)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    seconds = float(sys.stdin.readline())
    steps, first_id = 0, index << 40
    begin = now = time.monotonic()
    cpu_begin = time.process_time()
    while now - begin < seconds:
        ids = np.arange(first_id, first_id + games, dtype=np.uint64)
        steps += play_unrecorded(compiled, fresh, game_seeds(1, ids), scores, highest)
        first_id += games
        now = time.monotonic()
    sys.stdout.write(json.dumps((steps / (now - begin), (time.process_time() - cpu_begin) * 1e9 / steps)))


class _Stamps:
    """When each worker's blocks were confirmed, and what CPU time had been spent by then."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[tuple[float, int, float]]] = defaultdict(list)  # with CPU time
        # The time, and the CPU time of the daemon's loop, its process, and the thread that deletes sessions.
        self.costs: list[tuple[float, float, float, float]] = []

    def note(self, worker: WorkerPlace, rows: int, deleting_s: float) -> None:
        now = time.monotonic()
        assert worker.process is not None
        self.blocks[worker.index].append((now, rows, _cpu_s(worker.process.pid)))
        costs = (now, time.thread_time(), time.process_time(), deleting_s)
        self.costs[1:] = [costs]
        if not self.costs:
            self.costs.append(costs)

    def enough(self, seconds: float, workers: int) -> bool:
        """Whether this long has passed since each worker's first block, and each has a few of them."""
        now = time.monotonic()
        return len(self.blocks) == workers and all(
            len(blocks) >= BLOCKS_MIN and now - blocks[0][0] >= seconds for blocks in self.blocks.values()
        )

    def result(self, sessions: int) -> Recorded:
        rate = worker_s = 0.0
        rows = 0
        for worker, blocks in self.blocks.items():
            if len(blocks) < BLOCKS_MIN:
                raise RuntimeError(f"worker {worker} wrote {len(blocks)} blocks: too few to tell a rate")
            worker_rows = sum(count for _, count, _ in blocks[1:])
            worker_s += blocks[-1][2] - blocks[0][2]
            rate += worker_rows / (blocks[-1][0] - blocks[0][0])
            rows += worker_rows
        elapsed, *spent = (
            after - before for before, after in zip(self.costs[0], self.costs[-1], strict=True)
        )
        loop, process, deleting = (seconds * 1e9 / (rate * elapsed) for seconds in spent)
        return Recorded(rate, worker_s * 1e9 / rows, loop, process - loop - deleting, deleting, sessions)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Quiet:
    """A reporter that says nothing but what a person must hear."""

    def event(self, level: str, message: str) -> None:
        if level != "info":
            sys.stderr.write(f"{level}: {message}\n")

    def status(self, _make_status: Callable[[], Any]) -> None:
        pass


def _record_child(player: str, seconds: float, workers: int, out_dir: str, how: dict[str, Any]) -> None:
    from tape2048_recorder.daemon.daemon import Daemon
    from tape2048_recorder.record_options import RecorderConfig, split_player
    from tape2048_recorder.recorder import run

    stamps = _Stamps()
    deleting = Deleting(Path(out_dir), every_s=1e9 if how.get("keep") else 0.1)
    confirm = Daemon._confirm

    def stamped(self: Daemon, worker: WorkerPlace) -> None:
        block = worker.unconfirmed
        confirm(self, worker)
        if block is not None and worker.unconfirmed is None and self._phase == "recording":
            stamps.note(worker, block.rows, deleting.cpu_s)
            if stamps.enough(seconds, len(self.supervisor.workers)):
                self.stop("measured for long enough")

    Daemon._confirm = stamped  # type: ignore[method-assign]
    name, args = split_player(player)
    config = RecorderConfig(
        player=name, player_args=args or {}, workers=workers, out_dir=out_dir, seed=1,
        block_rows=how.get("block_rows"), storage=how.get("storage", "rows"),
        columns=how.get("columns"), max_wall_s=10 * seconds + 60,
    )  # fmt: skip
    with deleting:
        summary = run(config, _Quiet())
    sys.stdout.write(json.dumps(stamps.result(len(summary.sessions))))


class Deleting:
    """While entered: a thread deletes this directory's sessions as they appear; at the end, the rest."""

    def __init__(self, out_dir: Path, every_s: float = 0.1) -> None:
        self._out_dir = out_dir
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deleting")
        self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._delete()

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            self._delete()
            self.cpu_s = time.thread_time()

    def _delete(self) -> None:
        for path in self._out_dir.glob("[0-9]*_model=*"):
            shutil.rmtree(path, ignore_errors=True)


def ratio_figures(
    player: str, *, rounds: int, seconds: float, workers: int, directory: Path, **how: Any
) -> list[Figure]:
    """Recorded play of one player, as a part of unrecorded play, or of play recorded without columns."""
    columns = how.pop("columns", None)
    out_dir = directory / "sessions"
    found: list[Recorded] = []
    bare: list[float] = []

    def recorded() -> float:
        found.append(record(player, seconds, workers, out_dir, columns=columns, **how))
        return found[-1].rows_per_s if columns is None else 1e9 / found[-1].cpu_ns

    def other() -> float:
        if columns is None:
            rate, cpu_ns = play_bare(player, seconds, workers)
            bare.append(cpu_ns)
            return rate
        return 1e9 / record(player, seconds, workers, out_dir, **how).cpu_ns

    ones, others, shares = alternate(recorded, other, rounds)
    tape = how.get("storage") == "tape"
    group = f"`{player}`, {workers} workers{', on tape' if tape else ''}"
    less, unit = "unrecorded", "steps/s"
    if columns is not None:
        less, unit = "recorded without columns", "steps/CPU-s"
    costs = {
        "worker_ns": "workers", "daemon_ns": "daemon's loop", "publish_ns": "publishing",
        "delete_ns": "deleting (the benchmark's own)",
    }  # fmt: skip
    return [
        median_of(others, group=group, name=less, unit=unit),
        median_of(ones, group=group, name="recorded", unit=unit),
        median_of(shares, group=group, name=f"recorded of {less}", unit="ratio"),
        median_of(
            [one.publish_ns / one.cpu_ns for one in found],
            group=group, name="publishing, of the recorder's CPU", unit="ratio",
        ),
        *(
            [median_of(
                ratios(bare, [one.cpu_ns for one in found]),
                group=group, name=f"recorded of {less}, CPU time", unit="ratio",
            )] if bare else []
        ),
        *(
            median_of([getattr(one, field) for one in found], group=group, name=name, unit="CPU-ns/row")
            for field, name in costs.items()
        ),
    ]  # fmt: skip


def loop_figures(player: str, columns: str, rounds: int, seconds: float) -> list[Figure]:
    """The CPU time of a step in slices of unrecorded play and of play into buffers, and the ratios."""
    import numpy as np

    from tape2048_recorder.game.game_loop import BUFFER_FULL, GAMES_PLAYED, Buffer, play_into, play_unrecorded
    from tape2048_recorder.game.rng import game_seeds
    from tape2048_recorder.players.options import make_player
    from tape2048_recorder.record_options import split_player

    name, args = split_player(player)
    compiled = make_player(name, args or {})
    games = CHUNK_GAMES.get(player, 1)
    fresh, scores, highest = np.empty(0, np.uint64), np.empty(games, np.uint64), np.empty(games, np.uint8)

    def slices(play: Callable[[Any, Any], int]) -> Callable[[], float]:
        ids = np.arange(games, dtype=np.uint64)

        def timed() -> float:
            nonlocal ids
            steps, begin = 0, time.thread_time()
            while (spent := time.thread_time() - begin) < seconds or not steps:
                steps += play(ids, game_seeds(1, ids))
                ids = ids + np.uint64(games)
            return spent * 1e9 / steps

        timed()
        return timed

    def into(storage: str, columns: str = "") -> Callable[[], float]:
        how = {"storage": storage, "columns": columns.split(), "record_action": False, "sample_rate": 1}
        buffer = Buffer(rows_max=1 << 18, runs_max=1 << 15, **how)

        def play(ids: Any, seeds: Any) -> int:
            before = buffer.steps_played
            buffer.give(ids, seeds)
            while (status := play_into(buffer, compiled, steps_max=50_000)) != GAMES_PLAYED:
                if status == BUFFER_FULL:
                    buffer.drop_block()
            return buffer.steps_played - before

        return slices(play)

    found = in_turns({
        "unrecorded": slices(lambda _, seeds: play_unrecorded(compiled, fresh, seeds, scores, highest)),
        "into rows": into("rows"), "into tape": into("tape"),
        **({f"into rows with {columns}": into("rows", columns)} if columns else {}),
    }, rounds)  # fmt: skip
    return [
        figure
        for how, times in found.items()
        for figure in (
            median_of(times, group=f"`{player}`, loop", name=how, unit="CPU-ns/step"),
            median_of(
                ratios(found["unrecorded"], times), group=f"`{player}`, loop", name=f"unrecorded / {how}",
                unit="ratio",
            ),
        )
    ]  # fmt: skip


def measure(
    directory: Path, *, players: Sequence[str], rounds: int, seconds: float, workers: int, block_rows: int,
    storage: str, columns: str, keep: bool, loops: bool,
) -> list[Figure]:  # fmt: skip
    """The ratio of each player."""
    if loops:
        return [
            figure
            for player in players or TAPE_PLAYERS
            for figure in loop_figures(player, columns, rounds, seconds)
        ]
    return [
        figure
        for player in players or (TAPE_PLAYERS if storage == "tape" else PLAYERS)
        for figure in ratio_figures(
            player, rounds=rounds, seconds=seconds, directory=directory, workers=workers,
            block_rows=block_rows or None, keep=keep, storage=storage, columns=columns or None,
        )
    ]  # fmt: skip


BENCHMARK = Benchmark(
    measure,
    sizes={
        "players": (), "rounds": ROUNDS_MIN, "seconds": 8.0, "workers": 2, "block_rows": 0, "storage": "rows",
        "columns": "", "keep": False, "loops": False,
    },
    smallest={"players": ("random",), "rounds": 1, "seconds": 0.5, "workers": 1},
    in_memory=True,
)  # fmt: skip

if __name__ == "__main__":
    children = {"--child-play": _play_child, "--child-record": _record_child}
    if sys.argv[1:] and sys.argv[1] in children:
        children[sys.argv[1]](**json.loads(sys.argv[2]))
    else:
        BENCHMARK.main("recording", __doc__)
