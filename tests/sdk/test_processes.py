"""Each row of the table in docs/how-to/processes.md."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tape2048.stores.objects import open_store
from tape2048.stores.remote import put_session

from .processes import ROWS
from .store_servers import hub_server, s3_environment, store_url
from .tapes import games_on_tape
from .test_tape_corpus import write

CHECKOUT = Path(__file__).resolve().parents[2]
LINES = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in (CHECKOUT / "docs/how-to/processes.md").read_text().splitlines()
    if line.startswith("| ")
]
HEAD, *TABLE = LINES


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    for kind in ("rows", "tape"):
        for day in (1, 2):
            name = f"2025010{day}T030405Z_model=a"
            write(root / kind / name, games_on_tape(*range(10 * day, 10 * day + 5)), kind, action=True)
    return root


@contextmanager
def place_of(name: str, local: Path, directory: Path) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if "bucket" in name:
            url = stack.enter_context(store_url("gs", directory / "place"))
            for path in sorted((local / "rows").iterdir()):
                put_session(open_store(url), path, "00000a")
            yield url
        elif "Hub" in name:
            stack.enter_context(s3_environment(stack.enter_context(hub_server(local / "rows")), "hf"))
            yield "hf://datasets/USER/NAME"
        else:
            yield str(local / ("tape" if "tape" in name else "rows"))


def test_the_table_has_the_rows_that_are_tested() -> None:
    assert HEAD == ["object", "threads", "`fork`", "`spawn`, `forkserver`"]
    assert [row[0] for row in TABLE] == [*ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_a_row_of_the_table(row: list[str], local: Path, tmp_path: Path) -> None:
    name, threads, fork, spawn = row
    if "Loader" in name or "dataset" in name:
        pytest.importorskip("torch")
    with place_of(name, local, tmp_path) as place:
        done = subprocess.run(
            [sys.executable, "-m", "tests.sdk.processes", name, place], cwd=tmp_path, check=False, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path])},
            capture_output=True, timeout=200,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {"fork": fork, "spawn": spawn, "forkserver": spawn, "threads": threads}
    for kind, cell in expected.items():
        named = re.fullmatch(r"no: `(\w+)`", cell)
        outcome = named[1] if named else {"yes": "same", "-": None, "no": None}[cell]
        assert found.get(kind) == outcome, (kind, found, done.stderr)
