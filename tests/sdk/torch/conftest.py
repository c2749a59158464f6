"""Fixtures of the tests of PyTorch; without it, they are left out."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..critics import make_games

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
