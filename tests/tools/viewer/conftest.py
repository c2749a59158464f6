"""Recorded games, a viewer as a process of its own, and a browser."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.shared import shared

#: Longest wait for a viewer on a busy machine.
PATIENCE_S = 120.0

CHECKOUT = Path(__file__).resolve().parents[3]


def _environment() -> dict[str, str]:
    paths = [str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools")]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAPE2048_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="session")
def recorded() -> Path:
    """A directory of two sessions of a greedy player, one with moves and one without; 40 short games."""
    return shared("viewer", _record) / "selfplay"


def _record(directory: Path) -> None:
    for flags in (["--seed", "1", "--record-action"], ["--seed", "2"]):
        command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "greedy"]
        command += ["--workers", "1", "--max-games", "20", "--out", str(directory / "selfplay"), *flags]
        subprocess.run(command, env=_environment(), check=True, capture_output=True, timeout=120)


class Viewer(NamedTuple):
    """A running viewer: where it listens, the key of its pages, and what it says on standard error."""

    process: subprocess.Popen[str]
    address: str
    key: str
    said: Path

    @property
    def link(self) -> str:
        """The link that it printed last, which works once."""
        return re.findall(r"http://\S+", self.said.read_text())[-1]

    def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Ask with the key, unless the headers say otherwise; an empty header is left out."""
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": self.address, "Authorization": f"Bearer {self.key}", **headers}.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        found = response.status, response.read(), dict(response.getheaders())
        connection.close()
        return found

    def json(self, path: str) -> Any:
        """The answer to a request that succeeds."""
        code, body, _ = self.get(path)
        assert code == 200, body
        return json.loads(body)

    def best_game(self) -> tuple[str, str]:
        """The session and the run of the best game, once everything is read."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.json("/api/games"))["waiting"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found["rows"][0]["session"], found["rows"][0]["run"]

    def refusal(self, path: str, **how: str) -> tuple[int, dict[str, Any]]:
        """The code and the document of a request that is refused."""
        code, body, _ = self.get(path, **how)
        assert code >= 400, body
        return code, json.loads(body)


@pytest.fixture(scope="session")
def start_viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Viewer]]:
    """Start viewers on free ports, with a limit of open files; they end with the tests."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str | Path, port: int = 0, files: int = 1024) -> Viewer:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m"]
        command += ["tape2048_tools.cli", "view", *map(str, args)]
        command += ["--port", str(port), "--json", "--judge", "ntuple:weights=fast"]
        said = tmp_path_factory.mktemp("said") / "stderr"
        with said.open("w") as stderr:
            process = subprocess.Popen(
                command, env=_environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        running.append(process)
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the viewer ended without a link"
            text += line
        _, _, address, query = json.loads(text)["link"].split("/")
        viewer = Viewer(process, address, "", said)
        return viewer._replace(key=key_of(viewer.get(f"/{query}")[1]))

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def viewer(start_viewer: Callable[..., Viewer], recorded: Path) -> Viewer:
    return start_viewer(recorded)


def key_of(page: bytes) -> str:
    return page.decode().partition('data-key="')[2].partition('"')[0]


class SecondViewer(NamedTuple):
    """Another viewer for all tests that need one, of directories that they fill: each has its own."""

    viewer: Viewer
    first: Path
    second: Path
    planted: Path


@pytest.fixture(scope="session")
def second_viewer(
    start_viewer: Callable[..., Viewer], tmp_path_factory: pytest.TempPathFactory
) -> SecondViewer:
    """A viewer of three directories, which also answers to the name box.example."""
    roots = [tmp_path_factory.mktemp(name) for name in ("first", "second", "planted")]
    return SecondViewer(start_viewer(*roots, "--allow-host", "box.example"), *roots)


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recorded games, to be damaged."""
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
