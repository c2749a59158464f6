"""Examples in the README and in docstrings of the SDK run as tests, on recorded sessions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``tape2048 record`` leaves, a few runs, and a critic."""
    directory = tmp_path_factory.mktemp("recorded")
    flags = ["record", "--player", "greedy", "--workers", "1", "--max-games", "200"]
    command = [sys.executable, "-m", "tape2048_tools.cli", *flags]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    (directory / "runs").mkdir()
    for golden in (Path(__file__).parent / "tests/data").glob("golden.a2run*"):
        shutil.copy(golden, directory / "runs")
    _make_critic(directory / "critic/best")
    return directory


@pytest.fixture(scope="module")
def examples_directory(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory of its own for the examples of a file."""
    directory = tmp_path_factory.mktemp("examples")
    shutil.copytree(recorded, directory, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(directory)
    yield
    os.chdir(before)


def _make_critic(path: Path) -> None:
    """A critic that has learned nothing."""
    from tape2048.critic.facts import SplitInfo
    from tape2048.torch.critic import CriticInfo, HeadInfo, TowerInfo, save_critic
    from tape2048.torch.head import CriticHead
    from tape2048.torch.tower import Tower, TowerConfig, tower_sha256

    tower = Tower(TowerConfig(dim=8, layers=1, heads=2, ffn=8))
    info = CriticInfo(
        thresholds=[8192, 16384, 32768],
        kind="tokens",
        tower=TowerInfo(sha256=tower_sha256(tower), config=tower.config),
        head=HeadInfo(in_dim=8),
        split=SplitInfo(fractions={"train": 0.8, "val": 0.2}),
    )
    save_critic(path, info, CriticHead(8, info.thresholds), tower)


pytest_collect_file = SybilCollection(
    [
        Sybil(parsers=[PythonCodeBlockParser()], patterns=["README.md"], fixtures=["examples_directory"]),
        Sybil(
            parsers=[DocTestParser()],
            patterns=["sdk/*/*.py", "sdk/*/*/*.py", "sdk/*/*/*/*.py"],
            fixtures=["examples_directory"],
            document_types={".py": PythonDocStringDocument},
        ),
    ]
).pytest()
