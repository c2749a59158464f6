"""Targets of a neural critic's training: outcomes, a teacher's probabilities, or both; and whose games."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tape2048 import errors
from tape2048.critic import NTupleCritic
from tape2048.critic.facts import CriticFacts, PlayedBy, SplitInfo
from tape2048.game.rules import exps_to_boards
from tape2048.ntuple.network import NetworkLayout
from tape2048.torch import TorchCritic
from tape2048.torch.model import Targets
from tape2048.torch.training import train_critic

from ..builders import Game, Spec, write_ours
from ..critics import TILES, Seen, config, make_games

if TYPE_CHECKING:
    from pathlib import Path

PLAYER = PlayedBy("toy", "a" * 64, 120)


def save_teacher(path: Path, *, seed: int | None = 1, tiles: tuple[int, ...] = TILES, **facts: Any) -> Path:
    """A teacher of random weights, or without weights, which says 0.5 of every tile that is not there."""
    layout = NetworkLayout.of(["0123", "4567"])
    weights = np.zeros((layout.entries, 1 << (len(tiles) - 1).bit_length()), np.int16)
    if seed is not None:
        weights[:, : len(tiles)] = np.random.default_rng(seed).integers(-20, 20, (layout.entries, len(tiles)))
    split = SplitInfo(fractions={"train": 0.8, "val": 0.2})
    about = {"thresholds": list(tiles), "split": split, "players": [PLAYER], **facts}
    NTupleCritic(CriticFacts(**about), layout, weights, 1 / 32).save(path, preset=0)
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher") / "best.critic")


@pytest.fixture
def batch() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, 15, (64, 16)).astype(np.uint8))
    return {"tokens": tokens, "labels": torch.from_numpy(rng.integers(0, 2, (64, 3)).astype(np.float32))}


def targets(teacher: Path | str, kind: str, **changes: Any) -> Targets:
    made = config(teacher, "out", targets=kind, teacher=str(teacher), **changes)  # type: ignore[arg-type]
    made.check()
    return Targets(made, [PLAYER])


# --- what is learned


def test_outcomes_are_the_labels(batch: dict[str, Any]) -> None:
    assert targets("", "outcome")(batch) is batch["labels"]


def test_a_teachers_probabilities_take_their_place(teacher: Path, batch: dict[str, Any]) -> None:
    found = targets(teacher, "td")(batch)
    expected = NTupleCritic.load(teacher)(exps_to_boards(batch["tokens"].numpy()))
    assert found.dtype == torch.float32
    assert (found.numpy() == expected).all()
    assert (targets(teacher, "mix:1")(batch) == found).all()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.75])
def test_a_mixture_is_between_both(teacher: Path, batch: dict[str, Any], share: float) -> None:
    found = targets(teacher, f"mix:{share}")(batch).double()
    taught = targets(teacher, "td")(batch).double()
    assert torch.allclose(found, (1 - share) * batch["labels"] + share * taught, atol=1e-6)
    assert (found != taught).any()


def test_a_student_says_what_its_teacher_says(games: Path, tmp_path: Path) -> None:
    """Of a teacher that knows nothing, it learns nothing; of outcomes, it does."""
    save_teacher(tmp_path / "empty.critic", seed=None)
    boards = np.zeros(1, np.uint64)
    said = {}
    for kind, path in (("td", "empty.critic"), ("outcome", "")):
        about = {"targets": kind, "teacher": path and str(tmp_path / path), "epochs": 3}
        train_critic(config(games, tmp_path / kind, **about))
        critic = TorchCritic.load(tmp_path / kind / "last", "cpu")
        said[kind] = critic(boards)[0]
        assert critic.info.training["targets"] == kind
    assert np.abs(said["td"][1:] - 0.5).max() < np.abs(said["outcome"][1:] - 0.5).max()
    assert abs(said["td"][2] - 0.5) < 0.2 < abs(said["outcome"][2] - 0.5)


# --- teachers that do not fit


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"targets": "td"}, "expected a teacher for td and mix"),
        ({"targets": "mix:0.3"}, "expected a teacher for td and mix"),
        ({"teacher": "best.critic"}, "none for outcome"),
        ({"targets": "mix:0", "teacher": "best.critic"}, "expected a teacher for td and mix"),
        ({"targets": "mix:1.5", "teacher": "best.critic"}, "a share from 0 to 1"),
        ({"targets": "mix:", "teacher": "best.critic"}, "a share from 0 to 1"),
        ({"targets": "td", "teacher": "best.critic", "use_embeddings": True}, "and boards for it"),
    ],
)
def test_contradictory_settings_are_rejected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        config(tmp_path, tmp_path, **changes).check()


def test_a_teacher_of_other_tiles_is_rejected(games: Path, tmp_path: Path) -> None:
    path = save_teacher(tmp_path / "low.critic", tiles=(2048, 4096))
    with pytest.raises(
        errors.ModelError, match=r"tiles \(2048, 4096\), and the training \(4096, 8192"
    ) as caught:
        train_critic(config(games, tmp_path / "out", targets="td", teacher=str(path)))
    assert "--thresholds" in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()


def test_a_teacher_of_another_player_is_rejected(games: Path, tmp_path: Path) -> None:
    other = [PlayedBy("other:depth=3", "b" * 64, 7)]
    path = save_teacher(tmp_path / "other.critic", players=other)
    with pytest.raises(errors.ModelError) as caught:
        train_critic(config(games, tmp_path / "out", targets="mix:0.3", teacher=str(path)))
    assert f"judges other:depth=3 (SHA-256 {'b' * 16}...; 7 games)" in caught.value.message
    assert f"games of a player without a name (SHA-256 {'a' * 16}...; 120 games)" in caught.value.message
    assert "--kind ntuple" in (caught.value.hint or "")


def test_what_is_no_teacher_is_refused(games: Path, tmp_path: Path) -> None:
    (tmp_path / "neural").mkdir()
    (tmp_path / "neural/critic.json").write_text("{}")
    for name, said in (("nowhere", "no such file"), ("neural", "a neural critic")):
        with pytest.raises(errors.ModelError, match=said):
            train_critic(config(games, tmp_path / "out", targets="td", teacher=str(tmp_path / name)))


def test_a_resumed_training_refuses_another_teacher(games: Path, tmp_path: Path) -> None:
    path = save_teacher(tmp_path / "a.critic")
    settings = config(games, tmp_path / "out", targets="td", teacher=str(path))
    asked = iter(range(3))
    assert train_critic(settings, stop=lambda: next(asked, None) is None).ended is None
    save_teacher(tmp_path / "b.critic", seed=2)
    other = config(games, tmp_path / "out", targets="td", teacher=str(tmp_path / "b.critic"))
    with pytest.raises(errors.StateError, match=r"teacher = .*a.critic', not .*b.critic'; taught_by"):
        train_critic(other)
    (tmp_path / "b.critic").replace(path)  # another one under the same name
    with pytest.raises(errors.StateError, match=r"has taught_by = '[0-9a-f]{64}', not"):
        train_critic(settings)
    save_teacher(path)
    assert train_critic(settings).ended == "all steps are made"


# --- whose games


def test_games_of_several_players_need_a_flag(tmp_path: Path) -> None:
    root = make_games(tmp_path / "selfplay", sessions=1)
    made = [Game(i + 1, 20, 4096 << i % 3, seed=i) for i in range(60)]
    write_ours(root / "20250202T030405Z_model=b", Spec(games=made, facts={"player": "b"}))
    with pytest.raises(errors.ConfigError, match="found games of 2 players: ") as caught:
        train_critic(config(root, tmp_path / "out"))
    assert "--mixed-players" in (caught.value.hint or "")
    view = Seen()
    train_critic(config(root, tmp_path / "out", mixed_players=True, steps_max=2), view)
    assert view.events[0].startswith("games of b (no SHA-256; 60 games): their sessions have no SHA-256")
    players = json.loads((tmp_path / "out/last/critic.json").read_text())["players"]
    assert sorted((one["name"], one["sha256"]) for one in players) == [("", "a" * 64), ("b", "")]
