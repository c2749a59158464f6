"""The README's Python examples run as tests, on a session that is recorded for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def readme_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with what ``tape2048 record`` leaves in it, and a few runs."""
    directory = tmp_path_factory.mktemp("readme")
    command = [
        sys.executable,
        "-m",
        "tape2048_tools.cli",
        "record",
        "--player",
        "greedy",
        "--max-games",
        "200",
    ]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    (directory / "runs").mkdir()
    for golden in (Path(__file__).parent / "tests/data").glob("golden.a2run*"):
        shutil.copy(golden, directory / "runs")
    before = Path.cwd()
    os.chdir(directory)
    yield directory
    os.chdir(before)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["README.md"], fixtures=["readme_directory"]
).pytest()
