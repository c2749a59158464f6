"""Targets and weights of both kinds of critics, from columns; and whose games."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus, errors
from tape2048.critic import NTupleCritic
from tape2048.critic.critic_config import NTupleCriticConfig
from tape2048.critic.ntuple import corpus_games, ntuple_critic as ntuple, train_ntuple_critic
from tape2048.session.column_draft import write_column
from tape2048.torch import TorchCritic
from tape2048.torch.training import train_critic

from ..builders import Game, Spec, write_ours
from ..critics import TILES, Seen, config, make_games

TUPLES: dict[str, Any] = {
    "thresholds": " ".join(map(str, TILES)), "tuples": "0123 0145", "stages": "", "stride": 1, "epochs": 8,
    "learning_rate": 0.3, "threads": 1, "val_share": 0.2, "test_share": 0.0,
}  # fmt: skip


def outcomes(root: Path) -> NDArray[np.float32]:
    return Corpus.open(root).fetch(slice(None), ("labels",), thresholds=TILES)["labels"].astype(np.float32)


def write(root: Path, name: str, values: NDArray[Any], columns: Path | None = None, **facts: Any) -> None:
    """A column of all sessions of a corpus, of values by corpus row; no runs take turns."""
    corpus = Corpus.open(root, columns=columns)
    ends = np.cumsum([len(session) for session in corpus.sessions])
    for session, part in zip(corpus.sessions, np.split(values, ends[:-1]), strict=True):
        write_column(session, name, part, facts=facts, replace=True)


def undecided(root: Path) -> NDArray[np.uint8]:
    """Boards with 4096 whose games may reach 8192."""
    boards = Corpus.open(root).tokens(slice(None))
    return boards[boards.max(axis=1) == 12]


def weights_of(out: Path) -> bytes:
    return (out / "last/model.safetensors").read_bytes()


@pytest.fixture
def games(tmp_path: Path, games: Path) -> Path:
    """Games whose directory can have columns."""
    return Path(shutil.copytree(games, tmp_path / "games"))


def test_outcomes_in_a_column_are_the_outcomes(games: Path, tmp_path: Path) -> None:
    write(games, "won", outcomes(games), thresholds=list(TILES))
    write(games, "half", np.full(len(outcomes(games)), 0.5, np.float16))
    train_critic(config(games, tmp_path / "plain"))
    train_critic(config(games, tmp_path / "soft", targets="won", weight="half"))
    assert weights_of(tmp_path / "soft") == weights_of(tmp_path / "plain")


def test_probabilities_are_learned(games: Path, tmp_path: Path) -> None:
    """Of a column that says 0.5 everywhere, a critic learns 0.5; of outcomes, it does not."""
    write(games, "even", np.full((len(outcomes(games)), 3), 0.5, np.float32))
    said = {}
    for name in ("even", ""):
        train_critic(config(games, tmp_path / f"of{name}", targets=name, epochs=3))
        critic = TorchCritic.load(tmp_path / f"of{name}/last", "cpu")
        said[name] = abs(float(critic(np.zeros(1, np.uint64))[0, 2]) - 0.5)
        assert critic.info.training["targets"] == name
    assert said["even"] < 0.2 < said[""]


@pytest.mark.parametrize("kind", ["transformer", "ntuple"])
def test_rows_without_weight_teach_nothing(games: Path, tmp_path: Path, kind: str) -> None:
    """A critic of games that reached 8192 expects it more than a critic of the other games."""
    won = outcomes(games)[:, 1]
    write(games, "won", outcomes(games))
    expected = []
    for name, weights in (("winners", won), ("losers", 1 - won)):
        write(games, name, weights)
        if kind == "ntuple":
            settings = NTupleCriticConfig(data=str(games), targets="won", weight=name, **TUPLES)
            trained = train_ntuple_critic(settings, corpus_games(settings), tmp_path / name)
            assert trained.best is not None
            critic: Any = NTupleCritic.load(trained.best)
        else:
            train_critic(config(games, tmp_path / name, weight=name, epochs=3))
            critic = TorchCritic.load(tmp_path / name / "last", "cpu")
        expected.append(critic(undecided(games)).mean(axis=0)[1])
    assert expected[0] - expected[1] > 0.3


def test_an_ntuple_critic_learns_probabilities(games: Path, tmp_path: Path) -> None:
    write(games, "low", np.full((len(outcomes(games)), 3), 0.25, np.float32))
    settings = NTupleCriticConfig(data=str(games), targets="low", **TUPLES)
    trained = train_ntuple_critic(settings, corpus_games(settings), tmp_path / "out")
    assert trained.best is not None
    found = NTupleCritic.load(trained.best)(undecided(games))
    assert np.abs(found[:, 1:] - 0.25).mean() < 0.05


@pytest.mark.parametrize(
    ("column", "error", "said"),
    [
        (None, errors.ColumnError, "this session has no column 'taught'"),
        (np.float32([2, 0, 0]), errors.CorpusError, r"taught is \[2.0, 0.0, 0.0\] in row .* probabilities"),
        (np.float32([np.nan, 0, 0]), errors.CorpusError, r"taught is \[nan, 0.0, 0.0\]"),
        (np.float32([1, 0]), errors.ConfigError, r"expected \[N, 3\]"),
    ],
)
def test_a_column_that_is_no_target_is_rejected(
    games: Path, tmp_path: Path, column: Any, error: type, said: str
) -> None:
    if column is not None:
        write(games, "taught", np.tile(column, (len(outcomes(games)), 1)))
    with pytest.raises(error, match=said):
        train_critic(config(games, tmp_path / "out", targets="taught"))
    with pytest.raises(error, match=said):
        corpus_games(NTupleCriticConfig(data=str(games), targets="taught", **TUPLES))
    assert not (tmp_path / "out").exists()


def test_probabilities_of_other_tiles_are_rejected(games: Path, tmp_path: Path) -> None:
    write(games, "taught", outcomes(games), thresholds=[2048, 4096, 8192])
    with pytest.raises(errors.CorpusError, match=r"expected \[4096, 8192, 16384\]"):
        train_critic(config(games, tmp_path / "out", targets="taught"))


def test_a_resumed_training_rejects_another_column(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ntuple, "_ROUND_GAMES", 16)
    write(games, "taught", outcomes(games), critic_sha256="a")
    settings = config(games, tmp_path / "out", targets="taught")
    tuples = NTupleCriticConfig(data=str(games), targets="taught", **TUPLES)

    def after(count: int) -> Any:
        asked = iter(range(count))
        return lambda: next(asked, None) is None

    assert train_critic(settings, stop=after(3)).ended is None
    assert not train_ntuple_critic(tuples, corpus_games(tuples), tmp_path / "tuples", stop=after(1)).done
    write(games, "taught", outcomes(games), critic_sha256="b")
    with pytest.raises(errors.StateError, match=r"has columns_sha256 = '[0-9a-f]{64}', not"):
        train_critic(settings)
    with pytest.raises(errors.StateError, match=r"has columns_sha256 = '[0-9a-f]{64}', not"):
        train_ntuple_critic(tuples, corpus_games(tuples), tmp_path / "tuples")
    write(games, "taught", outcomes(games), critic_sha256="a")
    assert train_critic(settings).ended == "all steps are made"
    assert train_ntuple_critic(tuples, corpus_games(tuples), tmp_path / "tuples").done


def test_columns_of_an_overlay_are_used(games: Path, tmp_path: Path) -> None:
    write(games, "taught", outcomes(games), columns=tmp_path / "columns")
    with pytest.raises(errors.ColumnError, match="this session has no column"):
        train_critic(config(games, tmp_path / "out", targets="taught"))
    overlay = {"columns": str(tmp_path / "columns"), "targets": "taught"}
    assert train_critic(config(games, tmp_path / "out", steps_max=1, **overlay)).ended
    assert corpus_games(NTupleCriticConfig(data=str(games), **overlay, **TUPLES)).columns_sha256


def test_games_that_are_not_recorded_have_no_columns() -> None:
    with pytest.raises(errors.ConfigError, match="player: found 'greedy' beside the column 'taught'"):
        NTupleCriticConfig(player="greedy", games=9, targets="taught", **TUPLES).check()


def test_games_of_several_players_need_a_flag(tmp_path: Path) -> None:
    root = make_games(tmp_path / "selfplay", sessions=1)
    made = [Game(i + 1, 20, 4096 << i % 3, seed=i) for i in range(60)]
    write_ours(root / "20250202T030405Z_model=b", Spec(games=made, facts={"player": "b"}))
    with pytest.raises(errors.ConfigError, match="found games of 2 players: ") as caught:
        train_critic(config(root, tmp_path / "out"))
    assert "--mixed-players" in (caught.value.hint or "")
    view = Seen()
    train_critic(config(root, tmp_path / "out", mixed_players=True, steps_max=2), view)
    assert view.events[0].startswith("games of b (60 games): their sessions lack the player")
    players = json.loads((tmp_path / "out/last/critic.json").read_text())["players"]
    assert sorted((one["name"], one["sha256"]) for one in players) == [("", "a" * 64), ("b", "")]
