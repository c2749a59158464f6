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
    _make_critic(directory / "critic/best")
    before = Path.cwd()
    os.chdir(directory)
    yield directory
    os.chdir(before)


def _make_critic(path: Path) -> None:
    """A critic that has learned nothing."""
    from tape2048.torch.critic import CriticInfo, HeadInfo, SplitInfo, TowerInfo, save_critic
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


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["README.md"], fixtures=["readme_directory"]
).pytest()
