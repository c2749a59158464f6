"""Examples in the README, in docs/ and in docstrings of the SDK run as tests, on recorded sessions.

Of pages: Python as it stands; each line of a console block that calls a command of ours; and TOML, which has
to be a valid configuration of the recorder. What takes minutes, root or a browser is skipped on its page,
with the reason.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection
from tests.documentation import EXCLUDED, PAGES, RECORD, commands_of, fill, parsers
from tests.shared import VARIABLE, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Example


def pytest_configure() -> None:
    """Make the directory that all processes of the run share; a run in a run has that of the outer one."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix=f"{os.getpid()}-tests-")


def pytest_unconfigure() -> None:
    """Remove this directory."""
    directory = Path(os.environ[VARIABLE])
    if directory.name.startswith(f"{os.getpid()}-"):
        del os.environ[VARIABLE]
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def recorded() -> Path:
    """What ``tape2048 record`` leaves, and a critic."""
    return shared("recorded", fill)


@pytest.fixture(scope="module")
def examples_directory(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory of its own for the examples of a file."""
    directory = tmp_path_factory.mktemp("examples")
    shutil.copytree(recorded, directory, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(directory)
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def example_runs(examples_directory: None) -> None:  # noqa: ARG001 - the directory comes first
    """A few runs, for examples in docstrings."""
    Path("runs").mkdir()
    for golden in (Path(__file__).parent / "tests/data").glob("golden.a2run*"):
        shutil.copy(golden, "runs")


def _run_console(example: Example) -> None:
    """Run the lines of a console block that call a command of ours; each has to succeed."""
    from tape2048_tools.cli import cli, run
    from tape2048_tools.commands.runs import a2pack_command as a2pack

    commands = {"tape2048": cli, "a2pack": a2pack.command}
    for line in commands_of(example):
        program, *words = shlex.split(re.split(r"  #| [|>] ", line)[0])
        args = [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]  # noqa: PTH207
        if args[0] == "record":  # it handles signals and starts workers: a process of its own
            done = subprocess.run(
                [*RECORD, *args[1:]], capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
        else:
            assert run(args, commands[program], program) == 0, line


def _load_toml(example: Example) -> None:
    """Load a TOML block as a configuration of the recorder."""
    from tape2048_recorder.record_options import load_config
    from tape2048_recorder.retention import load_retention

    file = Path("example.toml")
    file.write_text(example.parsed)
    load_config({}, {}, file)
    load_retention({}, file)


pytest_collect_file = SybilCollection(
    [
        Sybil(
            parsers=parsers(_run_console, _load_toml, PythonCodeBlockParser()),
            patterns=PAGES,
            excludes=EXCLUDED,
            fixtures=["examples_directory"],
        ),
        Sybil(
            parsers=[DocTestParser()],
            patterns=["sdk/*/*.py", "sdk/*/*/*.py", "sdk/*/*/*/*.py"],
            fixtures=["example_runs"],
            document_types={".py": PythonDocStringDocument},
        ),
    ]
).pytest()
