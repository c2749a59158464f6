"""Commands that the kernel kills for lack of memory; nothing may be lost.

::

    python -m tests.bench.memory_kills [--kills 20] [--seed 1]

Each command runs in a control group whose memory runs out at a random time of its work. After the kill, every
game is in a whole session, complete outputs have the bytes that they had, and what is visible of a new one is
all of it. The same command then ends as it does without a kill. A third of the kills takes a recorder or one
of its workers, with the checks of ``tests.bench.soak``. Where no memory control group can be made, a SIGKILL
at the same times stands for the kernel's.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tape2048 import Corpus, Session
from tape2048.maintenance.validation import validate_session
from tape2048.session.session import sessions
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run

from ..recorder import processes
from ..recorder.checks import Listener
from ..recorder.processes import PATIENCE_S, environment
from .memory_group import MemoryGroup
from .soak import soak

#: Rows of each of two sessions, on which a command works for a second or more.
SESSION_ROWS = 500_000


class Operation(NamedTuple):
    """A command on ``root``, two sessions, and ``out``; before it another one, and what it leaves visible."""

    words: Callable[[Path, Path], list[object]]
    state: Callable[[Path, Path], object]
    before: Callable[[Path, Path], list[object]] | None = None


def games_of(root: Path) -> Counter[int]:
    """How often each game is in the sessions of a directory. They are all valid, with their columns."""
    found: Counter[int] = Counter()
    for path in sessions(root):
        report = validate_session(path)
        assert report.ok, report.findings
        found.update(Session.open(path).runs["seed"].tolist())
    return found


def games_and_storage(root: Path, _: Path) -> object:
    """The games of the sessions, and how many of these are on tape."""
    opened = [Session.open(path) for path in sessions(root)]
    return Counter(session.tape is not None for session in opened), games_of(root)


def built(_: Path, out: Path) -> object:
    """The rows and the runs of a data set."""
    if not out.exists():
        return None
    corpus = Corpus.open(out)
    return corpus.identity, corpus.runs["seed"].tolist()


def on_tape(root: Path) -> list[Path]:
    """The sessions that were not repacked yet."""
    return [path for path in sessions(root) if Session.open(path).tape is not None]


OPERATIONS = {
    "repack --remove": Operation(
        lambda root, _: ["repack", *on_tape(root), "--storage", "rows", "--remove", "--quiet"],
        games_and_storage,
    ),
    "merge --remove": Operation(
        lambda root, _: ["merge", *sessions(root), "--out", root, "--remove", "--quiet"], games_and_storage
    ),
    "dataset build": Operation(lambda root, out: ["dataset", "build", root, "--out", out, "--quiet"], built),
    "dataset append": Operation(
        lambda root, out: ["dataset", "append", out, sessions(root)[1], "--quiet"],
        built,
        lambda root, out: ["dataset", "build", sessions(root)[0], "--out", out, "--quiet"],
    ),
    "convert --to pack": Operation(
        lambda root, out: ["convert", root, "--out", out, "--to", "pack", "--quiet"],
        lambda _, out: out.read_bytes() if out.exists() else None,
    ),
    "annotate": Operation(
        lambda root, _: ["annotate", root, "--judge", "ntuple:weights=fast", "--quiet"],
        lambda root, _: {path.relative_to(root): path.read_bytes() for path in root.glob("*/*.f32.npy")},
    ),
}


def start(words: list[object]) -> subprocess.Popen[str]:
    """Start a command."""
    command = [sys.executable, "-m", "tape2048_tools.cli", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), text=True)


def finish(words: list[object]) -> None:
    """Run a command to its end, which is no error."""
    process = start(words)
    _, said = process.communicate(timeout=5 * PATIENCE_S)
    assert process.returncode == 0, said


def kill_at(words: list[object], seconds: float, group: MemoryGroup | None) -> bool:
    """Run a command in the group, and let memory run out after some seconds; whether it was killed."""
    process = start(words)
    if group is not None:
        group.add(process.pid)
    time.sleep(seconds)
    if process.poll() is None and group is not None:
        group.exhaust(process.pid)
    process.kill()
    _, code = process.communicate(timeout=PATIENCE_S), process.returncode
    assert code in {0, -signal.SIGKILL}, f"{words}: exit code {code}"
    return code != 0


class Kills:
    """Kills of one command, each in fresh copies of its sessions.

    Args:
        name: a key of :data:`OPERATIONS`.
        template: the sessions.
        scratch: an empty directory.
    """

    def __init__(self, name: str, template: Path, scratch: Path) -> None:
        self._operation = OPERATIONS[name]
        self._template = template
        self._root, self._out = scratch / "selfplay", scratch / "out"
        self._games = games_of(template)
        self.halves = 0  # kills after which a session was there, and its originals too
        before = self._prepare()
        begin = time.monotonic()
        finish(self._words)
        self._seconds = time.monotonic() - begin
        self._ends = [before, self._state]

    @property
    def _words(self) -> list[object]:
        return self._operation.words(self._root, self._out)

    @property
    def _state(self) -> object:
        return self._operation.state(self._root, self._out)

    def _prepare(self) -> object:
        """Start again; returns what is visible."""
        for path in (self._root, self._out):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.copytree(self._template, self._root)
        if self._operation.before is not None:
            finish(self._operation.before(self._root, self._out))
        return self._state

    def kill(self, draw: random.Random, group: MemoryGroup | None) -> bool:
        """Kill it once, check, and run it again; returns whether it was killed before its end."""
        self._prepare()
        killed = kill_at(self._words, draw.uniform(0.1, 0.7) * self._seconds, group)
        found = games_of(self._root)
        assert not self._games - found, "games are lost"
        if found != self._games:  # published, and killed before the originals were removed
            assert set(found) == set(self._games)
            self.halves += 1
            return killed
        if self._operation.state is not games_and_storage:
            state, end = self._state, self._ends[1]
            if isinstance(state, dict) and isinstance(end, dict):  # each session's columns are an output
                assert state.items() <= end.items(), "half of an output is visible"
            else:
                assert state in self._ends, "half of an output is visible"
        if self._state != self._ends[1]:
            finish(self._words)
        assert self._state == self._ends[1], "another output than without a kill"
        left = [path.name for path in self._root.parent.rglob(".*") if path.name != ".recorder"]
        assert not left, f"left: {left}"
        return killed


def record_sessions(root: Path) -> None:
    """Record two sessions on tape."""
    config = {
        "player": "ntuple", "player_args": {"weights": "fast", "look_below": 0}, "storage": "tape",
        "out_dir": str(root), "workers": 1, "seed": 1, "min_free_mb": 0, "rotate_steps": SESSION_ROWS,
        "max_steps": 2 * SESSION_ROWS, "block_rows": 65_536,
    }  # fmt: skip
    run(RecorderConfig(**config), Listener())
    assert len(sessions(root)) >= 2


def main() -> int:
    """Kill, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    processes.PATIENCE_S = 900.0  # a machine with other work may take minutes for a start
    draw, group = random.Random(args.seed), MemoryGroup.make()
    print("killed by the kernel" if group is not None else "no memory control group: killed by SIGKILL")
    print("| what | kills | lost | twice until the original is removed |\n|---|---|---|---|")
    directory = Path(tempfile.mkdtemp(prefix="memory_kills"))
    try:
        recorders = -(-args.kills // 3)
        words = [", memory" if group is not None else ""] * recorders
        victims = [("daemon", "worker")[i % 2] + word for i, word in enumerate(words)]
        (directory / "soak").mkdir()
        tally = soak(
            directory / "soak", seconds=0, every_s=(0.5, 3.0), workers=1, seed=args.seed, storage="tape",
            group=group, victims=victims,
        )  # fmt: skip
        assert tally.problems == [], tally.problems
        print(f"| record | {recorders}: {dict(tally.kills)} | {len(tally.ids):,} games, none lost | 0 |")
        (directory / "template").mkdir()
        record_sessions(directory / "template")
        names = [name for _ in range(args.kills) for name in OPERATIONS][: args.kills - recorders]
        for name, count in Counter(names).items():
            kills, done, tries = Kills(name, directory / "template", directory), 0, 0
            while done < count:
                done += kills.kill(draw, group)
                tries += 1
                assert tries < 5 * count, f"{name} ends too soon"
            print(f"| {name} | {done} | none | {kills.halves} |", flush=True)
    finally:
        shutil.rmtree(directory)
        if group is not None:
            group.__exit__(None, None, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
