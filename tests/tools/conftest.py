"""Small sessions, written here byte by byte from the format's description, and ways to run the command."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from crc32c import crc32c
from tests.reference import cornered

from tape2048.errors import TapeError

#: The fixtures that run the command: here, as a process, or either with a check of the exit code.
Cli = Callable[..., "Outcome"]
Tape = Callable[..., "Outcome"]
Process = Callable[..., subprocess.CompletedProcess[str]]

CHECKOUT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SEED_COLUMNS = "id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT"
ROW = np.dtype([("run_id", "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))])


class Game(NamedTuple):
    """One game of a session that a test wants."""

    seed: int
    steps: int
    max_score: int
    highest_tile: int


GAMES = (
    Game(seed=3, steps=40, max_score=20_000, highest_tile=2048),
    Game(seed=2**63 + 5, steps=60, max_score=180_000, highest_tile=8192),
    Game(seed=7, steps=50, max_score=370_000, highest_tile=16384),
    Game(seed=11, steps=50, max_score=60_000, highest_tile=4096),
)

#: Games of the same outcomes.
OTHERS = tuple(game._replace(seed=game.seed + 100) for game in GAMES[:2])

META = {
    "format_version": 1,
    "engine": "tape2048 0.1.0",
    "player": "expectimax",
    "player_args": {"depth": 2},
    "player_sha256": "ab" * 32,
    "config": {"player": "expectimax", "rotate_steps": 10_000_000, "workers": 2},
    "config_sha256": "cd" * 32,
    "model_tag": "expectimax",
    "host": "testhost",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:01:00Z",
    "seed": 42,
    "instance": "default",
    "sample_rate": 1,
    "record_action": False,
    "recovered": False,
}


def rows_of(games: Sequence[Game]) -> np.ndarray:
    """Rows whose first cell counts 1, 2, 3 again and again, and has the highest tile at the end."""
    rows = np.zeros(sum(game.steps for game in games), ROW)
    at = 0
    for number, game in enumerate(games, start=1):
        mine = rows[at : at + game.steps]
        mine["run_id"] = number
        mine["step_idx"] = np.arange(game.steps)
        mine["exps"][:, 0] = 1 + np.arange(game.steps) % 3
        mine["exps"][-1, 0] = game.highest_tile.bit_length() - 1
        mine["exps"][:, 5] = 1 + number
        at += game.steps
    return rows


def npy_header(rows: int) -> bytes:
    """The header of ``steps.npy``: format 1.0, padded to 192 bytes."""
    text = repr({"descr": ROW.descr, "fortran_order": False, "shape": (rows,)})
    return b"\x93NUMPY\x01\x00" + (192 - 10).to_bytes(2, "little") + text.ljust(192 - 11).encode() + b"\n"


def write_database(
    path: Path, games: Sequence[Game], meta: dict[str, Any], blocks: Sequence[tuple[int, int, int]]
) -> None:
    """``metadata.db`` as the format's page has it."""
    database = sqlite3.connect(path)
    with database:
        database.execute(f"CREATE TABLE runs({SEED_COLUMNS}, first_row INT, rows INT)")
        database.execute("CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT)")
        database.execute("CREATE TABLE blocks(first_row INTEGER PRIMARY KEY, rows INT, crc32c INT)")
        first = 0
        for number, game in enumerate(games, start=1):
            seed = game.seed - 2**64 if game.seed >= 2**63 else game.seed
            row = (number, seed, game.steps, game.max_score, game.highest_tile, first, game.steps)
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            first += game.steps
        database.executemany("INSERT INTO blocks VALUES (?, ?, ?)", blocks)
        pairs = [(key, json.dumps(value)) for key, value in meta.items()]
        database.executemany("INSERT INTO session VALUES (?, ?)", pairs)
    database.close()


def write_session(directory: Path, games: Sequence[Game] = GAMES, meta: dict[str, Any] = META) -> Path:
    """A whole session of one block."""
    directory.mkdir(parents=True)
    data = rows_of(games).tobytes()
    count = len(data) // ROW.itemsize
    (directory / "steps.npy").write_bytes(npy_header(count) + data)
    blocks = [(0, count, crc32c(data))] if count else []
    meta = {**meta, "rows": count, "runs": len(games)}
    write_database(directory / "metadata.db", games, meta, blocks)
    files = {}
    for name in ("steps.npy", "metadata.db"):
        content = (directory / name).read_bytes()
        files[name] = {"bytes": len(content), "crc32c": crc32c(content)}
    manifest = {"version": 1, "rows": count, "runs": len(games), "files": files}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def write_foreign_session(directory: Path) -> Path:
    """Two runs interleaved, the seed's columns alone, no facts, no blocks, no manifest."""
    directory.mkdir(parents=True)
    rows, (boards, _) = rows_of(GAMES[:2]), cornered()
    highest = rows["exps"][[39, 99], 0]
    rows["exps"] = boards[:40] + boards[:60]
    rows["exps"][:, 0] = np.repeat(highest, [40, 60])
    order = np.argsort(rows["step_idx"], kind="stable")
    np.save(directory / "steps.npy", rows[order])
    database = sqlite3.connect(directory / "metadata.db")
    with database:
        database.execute(f"CREATE TABLE runs({SEED_COLUMNS})")
        database.execute("CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT)")
        database.execute("INSERT INTO runs VALUES (1, 3, 40, 20000, 2048), (2, 5, 60, 180000, 8192)")
    database.close()
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with two sessions and one that is still being written."""
    write_session(tmp_path / "selfplay/20260101T000000Z_model=expectimax")
    write_session(
        tmp_path / "selfplay/20260101T000100Z_model=expectimax", OTHERS, {**META, "recovered": True}
    )
    (tmp_path / "selfplay/.partial").mkdir()
    return tmp_path / "selfplay"


@pytest.fixture
def session(root: Path) -> Path:
    """The first session of ``root``."""
    return root / "20260101T000000Z_model=expectimax"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A session written by others, alone in its directory."""
    return write_foreign_session(tmp_path / "others/foreign")


@pytest.fixture
def empty_session(tmp_path: Path) -> Path:
    """A session without a single game, alone in its directory."""
    return write_session(tmp_path / "empty/20260101T000000Z_model=a", [])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of whoever runs the tests reaches them, and nothing is written into the checkout."""
    for name in list(os.environ):
        if name.startswith("TAPE2048_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a subprocess that imports what this process imports.

    Without what whoever runs the tests set: PYTHONUNBUFFERED alone would hide how streams end.
    """
    paths = [str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**own, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"}


@pytest.fixture
def process(environment: dict[str, str]) -> Process:
    """Run ``tape2048`` as a process of its own."""

    def run_process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tape2048_tools.cli", *args]
        options = {"env": environment, "capture_output": True, "text": True, "timeout": 120, **options}
        return subprocess.run(command, check=False, **options)

    return run_process


class Outcome(NamedTuple):
    """What a command in this process did."""

    code: int
    out: str
    err: str

    def checked(self, expect: int | type[TapeError]) -> "Outcome":
        """Check the exit code: a number, or that of an error."""
        assert self.code == (expect if isinstance(expect, int) else expect.exit_code), self
        return self

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(tape: Tape, process: Process) -> Cli:
    """Run ``tape2048`` here, or with ``process=True`` as a process, and check the exit code.

    The first argument is split into words. ``expect`` is a code, or the class of an error.
    """

    def run_command(
        line: str = "", *args: object, expect: int | type[TapeError] = 0, **options: Any
    ) -> Outcome:
        words = [*line.split(), *map(str, args)]
        if options.pop("process", False):
            ended = process(*words, **options)
            done = Outcome(ended.returncode, ended.stdout, ended.stderr)
        else:
            done = tape(*words)
        return done.checked(expect)

    return run_command


@pytest.fixture
def tape(capsys: pytest.CaptureFixture[str]) -> Tape:
    """Run ``tape2048`` in this process, through the function that ``main`` calls."""
    from tape2048_tools.cli import run

    def run_here(*args: str | Path) -> Outcome:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_here


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
