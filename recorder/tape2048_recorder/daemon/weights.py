"""Live weights: the newest checkpoint in a directory plays.

The daemon polls ``model_dir`` every :data:`POLL_S`. The newest file that matches the pattern (by modification
time, then by name) is used once its size and time are the same in two polls. The daemon copies the file to a
directory in ``out_dir`` and computes its SHA-256. Workers load the copy, so all workers load the same bytes,
even if they start later and the trainer has changed the file. Each checkpoint is a **generation**. A session
holds games of one generation, and records the checkpoint's name and hash.

A checkpoint that a worker cannot load is reported once, and so is a directory that disappears. Recording
continues with the last good weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048._version import __version__
from tape2048.base.lazy import load_named
from tape2048.errors import PlayerError, RecorderError
from tape2048.files.opening import storage_error
from tape2048.players import player_name
from tape2048.session.layout import FORMAT_VERSION, RULES
from tape2048_recorder.ipc.protocol import (
    LOADS,
    FromWorker,
    Ready,
    WantWeights,
    Weights,
    WeightsRefused,
    WeightsTaken,
)
from tape2048_recorder.record_options import OWN_CALIBRATION, config_sha256, effective
from tape2048_recorder.recording.partial import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tape2048_recorder.daemon.supervisor import Supervisor, WorkerPlace
    from tape2048_recorder.game.kept_starts import StartBoards
    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.recording.recording import Recording
    from tape2048_recorder.status.status_report import Reporter

#: Polling interval. A poll costs microseconds, and a checkpoint takes longer to write.
POLL_S = 1.0

#: Most characters of a session's tag, and of the hash in it, which distinguishes checkpoints of equal names.
_TAG_MAX = 100
_TAG_HASH = 8

_COPY_BYTES = 1 << 20

#: Imported for a player only: the module finds networks.
_WITH_DIGESTS = "tape2048_recorder.players.parameters:with_digests"

#: Number of workers that end while they load a checkpoint after which it counts as unusable.
LOADERS_MAX = 3


class Seen(NamedTuple):
    """A checkpoint at one poll of its directory."""

    path: Path
    size: int
    mtime_ns: int


def newest_checkpoint(model_dir: Path, pattern: str) -> Seen | None:
    """Return the newest matching file of ``model_dir``, or None. Hidden files are ignored as unfinished."""
    found = []
    os.stat(model_dir)  # noqa: PTH116 - glob reports a missing directory as empty
    for path in model_dir.glob(pattern):
        with contextlib.suppress(OSError):  # it was renamed or removed since it was listed
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and not path.name.startswith("."):
                found.append(Seen(path, status.st_size, status.st_mtime_ns))
    return max(found, key=lambda seen: (seen.mtime_ns, seen.path.name), default=None)


@dataclasses.dataclass
class _Generation:
    """A copied checkpoint; ``player_sha256`` is known once a worker has loaded it."""

    weights: Weights
    name: str
    player_sha256: str | None = None
    refused: bool = False


@dataclasses.dataclass(eq=False)
class LiveWeights:
    """The checkpoints of a running recorder, copied to ``keep_dir``; ``offer`` announces new ones."""

    model_dir: Path
    pattern: str
    keep_dir: Path
    reporter: Reporter
    offer: Callable[[int], None]

    def __post_init__(self) -> None:
        self._next_poll = 0.0
        self._trouble: str | None = None
        self._generations: dict[int, _Generation] = {}
        self._seen: Seen | None = None  # at the last poll
        self._taken: Seen | None = None  # the last copied checkpoint, good or not
        shutil.rmtree(self.keep_dir, ignore_errors=True)
        try:
            first = newest_checkpoint(self.model_dir, self.pattern)
        except OSError as error:
            raise PlayerError(
                f"found no readable directory ({error.strerror}), expected a directory with checkpoints",
                path=self.model_dir,
                hint="Set model_dir, or start the recorder after the trainer's first checkpoint.",
            ) from error
        if first is None:
            raise PlayerError(
                f"found no checkpoint named {self.pattern}, expected at least one",
                path=self.model_dir,
                hint="Set model_files to the checkpoints' names, or wait for the trainer's first checkpoint.",
            )
        try:
            self._take(first)
        except OSError as error:
            where = Path(error.filename or first.path)
            raise storage_error(error, where, "copying the first checkpoint") from error

    @property
    def _good(self) -> list[_Generation]:
        return [one for one in self._generations.values() if not one.refused]

    @property
    def current(self) -> Weights:
        """The weights to play: the newest that no worker has rejected."""
        return self._good[-1].weights

    @property
    def proven(self) -> Weights:
        """The newest good weights that a worker has loaded; before any is loaded, the oldest good weights.

        A new worker starts with these weights, and then loads newer weights like the other workers. So it
        rejects bad weights instead of failing to start.
        """
        good = self._good
        return [*good[:1], *(one for one in good if one.player_sha256 is not None)][-1].weights

    def on_ready(self, generation: int, player_sha256: str) -> str | None:
        """Note a worker's player; return a message if another worker loaded a different one from the file."""
        found = self._generations[generation]
        if found.player_sha256 is None:
            if any(one.player_sha256 is not None for one in self._generations.values()):
                self.reporter.event("info", f"{found.name} is loaded: it plays the games that start now")
            found.player_sha256 = player_sha256
        if found.player_sha256 == player_sha256:
            return None
        return (
            f"workers loaded different players from one checkpoint: SHA-256 {player_sha256[:12]} and "
            f"{found.player_sha256[:12]}"
        )

    def on_message(self, message: WeightsTaken | WeightsRefused) -> str | None:
        """Note that a worker has loaded or rejected weights; return a message as :meth:`on_ready`."""
        if isinstance(message, WeightsTaken):
            return self.on_ready(message.generation, message.player_sha256)
        found = self._generations[message.generation]
        if not found.refused:
            found.refused = True
            self.reporter.event(
                "warning",
                f"{self.model_dir / found.name} cannot be used: {message.error}; recording continues with "
                f"{self._good[-1].name}",
            )
        return None

    def facts(self, facts: Facts, generation: int) -> Facts:
        known = self._generations[generation]
        digest = known.weights.sha256
        stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(known.name).stem)
        ending = f".{digest[:_TAG_HASH]}"
        tag = f"{facts.model_tag}.{stem}"[: _TAG_MAX - len(ending)] + ending
        return msgspec.structs.replace(
            facts, **self.player_facts(facts.player_args, generation), model_tag=tag
        )

    def player_facts(self, args: Mapping[str, Any], generation: int) -> dict[str, Any]:
        """Return the facts of a generation's player. Its SHA-256 is None before a worker has loaded it."""
        known = self._generations[generation]
        return {
            "player_sha256": known.player_sha256,
            "player_args": {**args, "model": known.name, "model_sha256": known.weights.sha256},
        }

    def tick(self, now: float, oldest: int) -> None:
        """Poll for a newer checkpoint if it is due; remove unused copies older than ``oldest``."""
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_S
        try:
            seen = newest_checkpoint(self.model_dir, self.pattern)
            settled = seen is not None and seen == self._seen and seen != self._taken
            self._seen = seen
            if seen is None:
                self._complain(f"{self.model_dir} has no checkpoint named {self.pattern} any more")
                return
            if settled:
                self._take(seen)
        except OSError as error:
            self._complain(f"{error.filename or self.model_dir}: {error.strerror or error}")
            return
        if self._trouble is not None:
            self._trouble = None
            self.reporter.event("info", f"{self.model_dir} has readable checkpoints again")
        # Forget generations that no worker plays or will load.
        keep = min(oldest, self.proven.generation)
        for number in [number for number in self._generations if number < keep]:
            with contextlib.suppress(OSError):
                Path(self._generations[number].weights.path).unlink(missing_ok=True)
            del self._generations[number]

    def _complain(self, what: str) -> None:
        if self._trouble is None:
            self.reporter.event("warning", f"{what}; recording continues with {self._good[-1].name}")
        self._trouble = what

    def _take(self, seen: Seen) -> None:
        number = max(self._generations, default=0) + 1
        self.keep_dir.mkdir(mode=0o700, exist_ok=True)
        name = seen.path.name.encode(errors="backslashreplace").decode()  # messages to workers are text
        copy = self.keep_dir / f"{number}-{name}"
        hashed = hashlib.sha256()
        at = seen.path  # the file in use, because errors of reading and writing have no path
        try:
            with seen.path.open("rb") as reader, copy.open("wb") as writer:
                while chunk := reader.read(_COPY_BYTES):
                    hashed.update(chunk)
                    at = copy
                    writer.write(chunk)
                    at = seen.path
                at = copy
        except OSError as error:
            copy.unlink(missing_ok=True)
            error.filename = error.filename or str(at)
            raise
        digest = hashed.hexdigest()
        self._taken = seen
        if self._generations and digest == self._generations[number - 1].weights.sha256:
            copy.unlink()
            return
        self._generations[number] = _Generation(Weights(number, str(copy), digest), name)
        self.offer(number)

    def close(self) -> None:
        shutil.rmtree(self.keep_dir, ignore_errors=True)


class Playing:
    """The player of all workers, and its weights if they change during recording."""

    def __init__(
        self,
        played: RecorderConfig,
        out_dir: Path,
        supervisor: Supervisor,
        reporter: Reporter,
        starts: StartBoards | None = None,
        *,
        settings_sha256: str | None = None,
    ) -> None:
        self._played = played
        self._args = load_named(_WITH_DIGESTS)(played.player, played.player_args)
        self._starts = starts
        self._settings_sha256 = settings_sha256
        self.supervisor = supervisor
        self._live: LiveWeights | None = None
        self._offered: dict[int, int] = {}  # the last offered generation, by worker
        self._died: Counter[int] = Counter()  # workers that ended while loading, by generation
        self.player_sha256: str | None = None
        if played.model_dir is not None:
            self._live = LiveWeights(
                Path(played.model_dir).absolute(),
                played.model_files,
                out_dir / f".{played.instance}.weights",
                reporter,
                supervisor.offer_weights,
            )
            supervisor.weights = self._live.proven

    def facts(self, config: RecorderConfig, started_at: str, generation: int) -> Facts:
        """Return a session's facts; ``config`` is in effect now, perhaps after a reload."""
        assert self.player_sha256 is not None  # only a ready worker writes blocks
        played = self._played
        assert played.seed is not None
        known = None
        if played.columns:
            known = load_named(OWN_CALIBRATION)(played.player, played.player_args, self.player_sha256)
        facts = Facts(
            format_version=FORMAT_VERSION,
            engine=f"tape2048/{__version__}",
            player=played.player,
            player_args=self._args,
            player_sha256=self.player_sha256,
            seed=played.seed,
            sample_rate=played.sample_rate,
            record_action=played.record_action,
            storage=played.storage,
            model_tag=played.tag,
            instance=played.instance,
            started_at=started_at,
            config=effective(config),
            config_sha256=config_sha256(config),
            rules=RULES,
            start_boards=self._starts,
            settings_sha256=self._settings_sha256,
            calibrated=None if known is None else known.player,
        )
        return facts if self._live is None else self._live.facts(facts, generation)

    @property
    def player_name(self) -> str | None:
        """The name of the player of new games, for display; None before a worker is ready."""
        facts = {
            "player": self._played.player,
            "player_args": self._args,
            "player_sha256": self.player_sha256,
        }
        if self._live is not None:
            facts |= self._live.player_facts(self._args, self._live.proven.generation)
        return player_name(facts) if facts["player_sha256"] else None

    def on_ready(self, index: int, message: Ready) -> RecorderError | None:
        """Note a worker's player; return an error if it differs from the other workers' player."""
        before, self.player_sha256 = self.player_sha256, message.player_sha256
        if self._live is not None:
            return _conflict(self._live.on_ready(message.generation, message.player_sha256))
        if before in {None, message.player_sha256}:
            return None
        return _conflict(
            f"worker {index} loaded a player with SHA-256 {message.player_sha256[:12]}, expected "
            f"{str(before)[:12]}: the player changed while the recorder ran"
        )

    def on_message(self, worker: WorkerPlace, message: FromWorker) -> RecorderError | None:
        """Answer a worker's message about weights; return an error as :meth:`on_ready`."""
        assert self._live is not None, "no weights were offered"
        if isinstance(message, WeightsTaken | WeightsRefused):
            return _conflict(self._live.on_message(message))
        assert isinstance(message, WantWeights)
        self._offered[worker.index] = self._live.current.generation
        worker.answer(self._live.current)
        return None

    def tick(self, recording: Recording, now: float, *, look: bool) -> None:
        """Close the sessions of weights that no worker plays any more; with ``look``, poll ``model_dir``."""
        if self._live is None:
            return
        oldest = int(self.supervisor.shared.slots["oldest"].min())
        recording.retire(oldest)
        if look:
            busy = self.supervisor.shared.slots["busy"]
            for worker in self.supervisor.workers:
                if not worker.alive and busy[worker.index] == LOADS:
                    busy[worker.index] = 0
                    generation = self._offered[worker.index]
                    self._died[generation] += 1
                    if self._died[generation] == LOADERS_MAX and generation > self._live.proven.generation:
                        why = f"{LOADERS_MAX} workers ended while they loaded it"
                        self._live.on_message(WeightsRefused(generation, why))
            self._live.tick(now, oldest)
            self.supervisor.weights = self._live.proven

    def close(self) -> None:
        """Remove the copies of the weights. Call it after the workers have ended."""
        if self._live is not None:
            self._live.close()


def _conflict(text: str | None) -> RecorderError | None:
    # Not StartError, after which systemd does not restart a service: after a restart, all workers agree.
    return None if text is None else RecorderError(text, hint="Restart the recorder.")
