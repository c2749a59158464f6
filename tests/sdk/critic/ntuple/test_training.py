"""The training: resumption to the last bit, its files, and what it says or refuses."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sdk.builders import names

from tape2048 import Corpus
from tape2048.critic import NTupleCritic
from tape2048.critic.ntuple import (
    NTupleCriticConfig,
    corpus_games,
    ntuple_critic as training,
    train_ntuple_critic,
)
from tape2048.critic.ntuple.ntuple_critic import GameBoards, GameSource, TrainedNTuple
from tape2048.errors import ConfigError, StateError, TrainingError
from tape2048.files.safetensors import decode, encode

from ...builders import Game, Spec, write_ours
from ...critics import Seen, lines

SETTINGS = {
    "thresholds": "4096 8192", "tuples": "0123 0145", "stages": "", "stride": 1, "epochs": 3, "threads": 1,
    "val_share": 0.2, "test_share": 0.0, "decay": 0.9,
}  # fmt: skip
STEPS = 40


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a few games, so that there are several in an epoch."""
    monkeypatch.setattr(training, "_ROUND_GAMES", 16)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games with one tile on the board, which tells how far the game comes, but for noise."""
    rng = np.random.default_rng(4)
    tiles = 1 << rng.integers(11, 15, 120)
    made = [Game(i + 1, STEPS, int(tile), seed=i) for i, tile in enumerate(tiles)]

    def change(rows: Any) -> None:
        rows["exps"] = 0
        seen = np.log2(np.repeat(tiles, STEPS)).astype(int) - 6 + rng.integers(-1, 2, len(rows))
        rows["exps"][np.arange(len(rows)), rng.integers(0, 16, len(rows))] = seen

    facts = {"player": "toy", "player_sha256": "a" * 64}
    root = tmp_path_factory.mktemp("games") / "selfplay"
    write_ours(root / "20250102T030405Z_model=toy", Spec(games=made, facts=facts, change_rows=change))
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> GameSource:
    return corpus_games(config(root))


def config(root: Path, **changes: Any) -> NTupleCriticConfig:
    return NTupleCriticConfig(**{"data": str(root), **SETTINGS, **changes})


def after(count: int) -> Callable[[], bool]:
    """A stop at the count-th question."""
    asked = iter(range(count))
    return lambda: next(asked, None) is None


def files(out: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """All that a training leaves, but for times."""
    arrays, texts = decode((out / "checkpoint.safetensors").read_bytes(), "checkpoint")
    checkpoint = texts["state"].encode() + b"".join(array.tobytes() for array in arrays.values())
    return (out / "best.critic").read_bytes(), checkpoint, lines(out)


@pytest.fixture(scope="module")
def whole(root: Path, source: GameSource, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The directory of a training that was never stopped, and its number of rounds."""
    out = tmp_path_factory.mktemp("whole") / "critic"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_ROUND_GAMES", 16)
        view = Seen()
        trained = train_ntuple_critic(config(root), source, out, view)
    return out, trained, view


def test_a_training_writes_critic_and_metrics(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen]
) -> None:
    out, trained, view = whole
    assert names(out) == ["best.critic", "checkpoint.safetensors", "metrics.jsonl"]
    assert (trained.done, trained.early, trained.best) == (True, False, out / "best.critic")
    metrics = lines(out)
    assert [line["epoch"] for line in metrics] == [1, 2, 3]
    assert [line["games"] for line in metrics] == [source.train_games * epoch for epoch in (1, 2, 3)]
    assert metrics[-1]["rows"] == 3 * len(next(source.chunks(0)).boards)
    assert trained.progress.figures["best_loss"] == min(line["loss"] for line in metrics)
    assert view.seen[-1].done == view.seen[-1].of
    info = NTupleCritic.load(out / "best.critic").info
    corpus = Corpus.open(root)
    assert (info.thresholds, info.corpus_hash, info.where) == ([4096, 8192], corpus.identity, "")
    assert info.split.fractions == {"train": 0.8, "val": 0.2}
    assert [(player.sha256, player.games) for player in info.players] == [("a" * 64, 120)]
    assert info.training["kind"] == "ntuple"
    assert info.training["tuples"] == "0123 0145"
    # Of the last pass, whether or not an earlier one was better.
    assert info.metrics["loss"] == trained.progress.figures["loss"] == metrics[-1]["loss"]
    assert info.step == metrics[-1]["games"]


def test_the_loss_is_of_held_out_games(source: GameSource, whole: tuple[Path, TrainedNTuple, Seen]) -> None:
    out, trained, _ = whole
    critic = NTupleCritic.load(out / "best.critic")
    p = np.clip(critic(source.val.boards).astype(float), 1e-7, 1 - 1e-7)
    highest = np.repeat(source.val.highest, np.diff(source.val.starts))
    truth = highest[:, None] >= [12, 13]
    loss = -np.where(truth, np.log(p), np.log1p(-p)).mean()
    assert loss == pytest.approx(
        trained.progress.figures["loss"], abs=0.005
    )  # the file's weights are rounded
    plain = truth.mean(axis=0)
    guessed = -(plain * np.log(plain) + (1 - plain) * np.log(1 - plain)).mean()
    assert loss < 0.8 * guessed


def test_free_memory_does_not_change_the_critic(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a training may go on where less memory is free."""
    monkeypatch.setattr(training, "_PIECE_BOARDS", 1500)
    made = {}
    for name, free in (("read", 0), ("held", 1 << 40)):
        monkeypatch.setattr(training, "ram_available", lambda free=free: free)
        made[name] = corpus_games(config(root))
    assert len(list(made["read"].chunks(0))) == 3
    for name, order in {"a": ["held"], "b": ["read"], "c": ["held", "read", "held", "read"]}.items():
        for number, one in enumerate(order):
            stop = after(3 if number + 1 < len(order) else 1000)
            trained = train_ntuple_critic(config(root), made[one], tmp_path / name, stop=stop)
        assert trained.done
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


def test_a_finished_training_does_nothing_again(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen]
) -> None:
    out, trained, _ = whole
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    view = Seen()
    again = train_ntuple_critic(config(root), source, out, view)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()} == before
    assert (again.done, again.best, again.progress.figures["best_loss"]) == (
        True,
        out / "best.critic",
        trained.progress.figures["best_loss"],
    )
    assert view.seen == []


def test_what_does_not_decide_the_result_may_change(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen], tmp_path: Path
) -> None:
    train_ntuple_critic(config(root), source, tmp_path, stop=after(3))
    changed = config(root, threads=2, checkpoint_s=7.0, prune_below=0.1)
    trained = train_ntuple_critic(changed, source, tmp_path)
    assert trained.progress.figures["loss"] == pytest.approx(whole[1].progress.figures["loss"], rel=0.1)


def test_another_training_is_refused_by_name(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen]
) -> None:
    before = files(whole[0])
    cases: dict[str, dict[str, Any]] = {
        "decay = 0.9, not 0.5": {"decay": 0.5},
        "seed = 1, not 2; stride = 1, not 4": {"seed": 2, "stride": 4},
        "tuples = '0123 0145', not '0123 4567'": {"tuples": "0123 4567"},
        "epochs = 3, not 4": {"epochs": 4},
        "thresholds = '4096 8192', not '4096 16384'": {"thresholds": "4096 16384"},
    }
    for said, changes in cases.items():
        with pytest.raises(StateError) as caught:
            train_ntuple_critic(config(root, **changes), source, whole[0])
        assert said in caught.value.message
        assert "another --out" in (caught.value.hint or "")
    assert files(whole[0]) == before
    other = source._replace(identity="f" * 64)
    with pytest.raises(StateError, match=f"corpus = '{source.identity}', not '{'f' * 64}'"):
        train_ntuple_critic(config(root), other, whole[0])


def test_a_damaged_checkpoint_is_refused(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    data = (whole[0] / path.name).read_bytes()
    arrays, texts = decode(data, "checkpoint")
    narrow = np.ascontiguousarray(arrays["records"][:, :2])
    damaged = [
        data[:-9],
        b"",
        data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        b"".join(encode(arrays, {**texts, "format": "tape2048 n-tuple checkpoint 1"})),
        b"".join(encode(arrays, {**texts, "state": "[" * 100_000})),
        b"".join(encode({"places": arrays["places"]}, texts)),
        b"".join(encode({**arrays, "places": arrays["places"] + np.uint64(2**40)}, texts)),
        b"".join(encode({**arrays, "records": narrow}, texts)),
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(StateError) as caught:
            train_ntuple_critic(config(root), source, tmp_path)
        assert caught.value.path == str(path)


def test_settings_that_a_checkpoint_lacks_are_their_defaults(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen], tmp_path: Path
) -> None:
    """An earlier version did not have them."""
    path = tmp_path / "checkpoint.safetensors"
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    arrays, texts = decode(path.read_bytes(), "checkpoint")
    settings = json.loads(texts["config"])
    for name in ("weight", "targets", "where", "mixed_players"):
        del settings[name]
    path.write_bytes(b"".join(encode(arrays, {**texts, "config": json.dumps(settings)})))
    assert train_ntuple_critic(config(root), source, tmp_path).done
    with pytest.raises(StateError, match="mixed_players = False, not True"):
        train_ntuple_critic(config(root, mixed_players=True), source, tmp_path)


def test_patience_ends_a_training(
    root: Path, source: GameSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [0.5, 0.4, 0.45, 0.41, 0.3]
    monkeypatch.setattr(
        training._NTupleLearner, "_validate", lambda self: (losses[self.state.epoch - 1], 0.6)
    )
    settings = config(root, epochs=5, patience=2)
    trained = train_ntuple_critic(settings, source, tmp_path)
    assert (trained.done, trained.early, trained.progress.figures["epoch"]) == (True, True, 4)
    assert (trained.progress.figures["loss"], trained.progress.figures["best_loss"]) == (0.41, 0.4)
    assert NTupleCritic.load(tmp_path / "best.critic").info.step == 2 * source.train_games
    again = train_ntuple_critic(settings, source, tmp_path)
    assert (again.early, again.progress.figures["epoch"]) == (True, 4)


def test_without_patience_the_last_pass_counts(
    root: Path, source: GameSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [0.4, 0.3, 0.5]
    monkeypatch.setattr(
        training._NTupleLearner, "_validate", lambda self: (losses[self.state.epoch - 1], 0.6)
    )
    trained = train_ntuple_critic(config(root), source, tmp_path)
    assert (trained.early, trained.progress.figures["best_loss"], trained.progress.figures["loss"]) == (
        False,
        0.3,
        0.5,
    )
    assert NTupleCritic.load(tmp_path / "best.critic").info.step == 3 * source.train_games


def test_prune_below_replaces_rare_weights(
    root: Path, source: GameSource, whole: tuple[Path, TrainedNTuple, Seen], tmp_path: Path
) -> None:
    train_ntuple_critic(config(root, prune_below=20.0), source, tmp_path)
    pruned, full = (NTupleCritic.load(path / "best.critic") for path in (tmp_path, whole[0]))
    tables = zip(
        pruned.layout.tables(pruned.weights).values(), full.layout.tables(full.weights).values(), strict=True
    )
    changed = kept = 0
    for mine, theirs in tables:
        for column in range(len(pruned.thresholds)):
            means = np.unique(mine[mine[:, column] != theirs[:, column], column])
            assert len(means) <= 1
            changed += int((mine[:, column] != theirs[:, column]).sum())
            kept += int(((mine[:, column] == theirs[:, column]) & (theirs[:, column] != 0)).sum())
            for mean in means:
                assert min(theirs[:, column]) < mean < max(theirs[:, column])
    assert changed > 0 < kept
    assert (tmp_path / "best.critic").stat().st_size < (whole[0] / "best.critic").stat().st_size


def test_the_highest_rate_learns_no_nonsense(root: Path, source: GameSource, tmp_path: Path) -> None:
    trained = train_ntuple_critic(config(root, learning_rate=100, epochs=1), source, tmp_path)
    assert math.isfinite(trained.progress.figures["loss"] or math.nan)
    assert np.isfinite(NTupleCritic.load(tmp_path / "best.critic")(source.val.boards)).all()


def with_highest(source: GameSource, change: Callable[[Any], Any]) -> GameSource:
    def chunks(first: int) -> Any:
        return (GameBoards(one.boards, one.starts, change(one.highest)) for one in source.chunks(first))

    return source._replace(chunks=chunks, highest=change(source.highest))


def test_games_of_one_kind_are_refused_by_name(root: Path, source: GameSource, tmp_path: Path) -> None:
    for change, said in (
        (lambda highest: np.full_like(highest, 15), "all of"),
        (lambda highest: np.full_like(highest, 5), "none of"),
    ):
        with pytest.raises(TrainingError, match="nothing can be learned") as caught:
            train_ntuple_critic(config(root), with_highest(source, change), tmp_path / "critic")
        for tile in ("4,096", "8,192"):
            assert f"{tile} was reached by {said} {source.train_games} games" in caught.value.message
        assert "--thresholds" in (caught.value.hint or "")
        assert not (tmp_path / "critic").exists()


def test_an_unreached_tile_is_reported(root: Path, source: GameSource, tmp_path: Path) -> None:
    view = Seen()
    settings = config(root, thresholds="4096 32768", epochs=2)
    train_ntuple_critic(settings, source, tmp_path, view)
    assert view.events[0].startswith(f"32,768 was reached by none of {source.train_games} games")
    found = NTupleCritic.load(tmp_path / "best.critic")(source.val.boards)
    assert np.isfinite(found).all()
    assert np.median(found[:, 0]) > 0.2
    assert np.median(found[:, 1]) < 0.05


def test_games_without_a_players_hash_are_said(tmp_path: Path) -> None:
    made = [Game(i + 1, 20, 4096 if i % 2 else 8192, seed=i) for i in range(30)]
    write_ours(tmp_path / "in/20250102T030405Z_model=toy", Spec(games=made))
    view = Seen()
    settings = config(tmp_path / "in", epochs=1)
    train_ntuple_critic(settings, corpus_games(settings), tmp_path / "out", view)
    assert "games of unknown player (30 games): their sessions lack the" in view.events[0]
    (player,) = NTupleCritic.load(tmp_path / "out/best.critic").info.players
    assert (player.name, player.sha256, player.games) == ("", "", 30)


def test_tables_that_do_not_fit_are_refused(
    root: Path, source: GameSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "ram_available", lambda: 2 * 65536 * 16 - 1)
    with pytest.raises(ConfigError, match=r"found tuples, stages and tiles of 0\.0 GB") as caught:
        train_ntuple_critic(config(root), source, tmp_path / "critic")
    assert "fewer stages" in (caught.value.hint or "")
    assert not (tmp_path / "critic").exists()
