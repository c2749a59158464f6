"""What a training says of the tower that it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048.critic.facts import SplitInfo  # noqa: E402 - after the skip
from tape2048.torch.critic import (  # noqa: E402
    CriticHead,
    CriticInfo,
    HeadInfo,
    TowerInfo,
    save_critic,
)
from tape2048.torch.tower import Tower, TowerConfig, save_tower, tower_sha256  # noqa: E402
from tape2048.torch.training.model import split_of_tower  # noqa: E402 - after the skip
from tape2048.torch.training.run import train_critic  # noqa: E402

from ..critics import TILES, config, make_games  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = TowerConfig(dim=8, layers=1, heads=2, ffn=8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def critic(tmp_path: Path) -> Path:
    """One that learned from 0.7 of the games."""
    tower = Tower(SIZES)
    info = CriticInfo(
        thresholds=list(TILES),
        kind="tokens",
        tower=TowerInfo(sha256=tower_sha256(tower), config=SIZES),
        head=HeadInfo(in_dim=8),
        split=SplitInfo(fractions={"train": 0.7, "val": 0.1, "test": 0.2}, salt="a"),
    )
    save_critic(tmp_path / "first", info, CriticHead(8, TILES), tower)
    return tmp_path / "first"


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"val_share": 0.1, "test_share": 0.2, "split_salt": "a"}, None),
        ({"val_share": 0.2, "test_share": 0.0, "split_salt": "a"}, None),
        ({"val_share": 0.1, "test_share": 0.3, "split_salt": "a"}, "(train 0.7)"),
        ({"val_share": 0.1, "test_share": 0.2}, "(train 0.7, split_salt 'a')"),
    ],
)
def test_a_tower_that_knows_games_held_out_is_told_of(
    critic: Path, tmp_path: Path, split: dict[str, Any], said: str | None
) -> None:
    found = split_of_tower(config(tmp_path, tmp_path / "second", tower=str(critic), **split))
    assert (said is None and found is None) or (said is not None and said in str(found))


def test_of_other_towers_nobody_knows(tmp_path: Path) -> None:
    save_tower(tmp_path / "tower", Tower(SIZES))
    for tower in ("", "towers:make", str(tmp_path / "tower")):
        assert split_of_tower(config(tmp_path, tmp_path / "second", tower=tower)) is None


def test_a_training_tells_its_user(critic: Path, tmp_path: Path) -> None:
    class View:
        def __init__(self) -> None:
            self.events: list[str] = []

        def event(self, message: str) -> None:
            self.events.append(message)

        def progress(self, progress: object) -> None:
            pass

    view = View()
    games = make_games(tmp_path / "selfplay", sessions=1)
    train_critic(config(games, tmp_path / "second", tower=str(critic), steps_max=1), view)
    assert any("flatter" in event for event in view.events)
