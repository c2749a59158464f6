"""Recorded games, a viewer as a process of its own, and a browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Longest wait for a viewer on a busy machine.
PATIENCE_S = 120.0

CHECKOUT = Path(__file__).resolve().parents[3]


def _environment() -> dict[str, str]:
    paths = [str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools")]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAPE2048_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two sessions of a greedy player, one with moves and one without; 40 short games."""
    root = tmp_path_factory.mktemp("viewer") / "selfplay"
    for flags in (["--seed", "1", "--record-action"], ["--seed", "2"]):
        command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "greedy"]
        command += ["--workers", "1", "--max-games", "20", "--out-dir", str(root), *flags]
        subprocess.run(command, env=_environment(), check=True, capture_output=True, timeout=120)
    return root


class Viewer(NamedTuple):
    """A running viewer."""

    process: subprocess.Popen[str]
    link: str

    @property
    def address(self) -> str:
        return self.link.split("/")[2]

    @property
    def token(self) -> str:
        return self.link.partition("token=")[2]

    @property
    def cookie(self) -> str:
        return f"tape2048_view_{self.address.rpartition(':')[2]}={self.token}"

    def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Ask with the cookie, unless the headers say otherwise; an empty header is left out."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": self.address, "Cookie": self.cookie, **headers}.items():
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
def start_viewer() -> Iterator[Callable[..., Viewer]]:
    """Start viewers on free ports; they end with the tests."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str | Path, port: int = 0) -> Viewer:
        command = [sys.executable, "-m", "tape2048_tools.cli", "view", *map(str, args)]
        command += ["--port", str(port), "--json", "--judge", "ntuple:weights=fast"]
        process = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the viewer ended without a link"
            text += line
        return Viewer(process, json.loads(text)["link"])

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="session")
def viewer(start_viewer: Callable[..., Viewer], recorded: Path) -> Viewer:
    """A viewer of the recorded games."""
    return start_viewer(recorded)


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
