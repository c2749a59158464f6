"""Fixtures of the tests of PyTorch; without it, they are left out."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from ..critics import make_games

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


collect_ignore_glob = [] if find_spec("torch") and find_spec("safetensors") else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Set the number of threads back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_games(tmp_path_factory.mktemp("games") / "selfplay")
