"""Training: that it learns, that it goes on to the last digit, and everything that stops it."""

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tape2048 import Corpus, __version__, errors
from tape2048.critic.facts import SplitInfo
from tape2048.files.durable import replace_file
from tape2048.files.training_directory import CHECKPOINT
from tape2048.session.session import Session
from tape2048.torch import TorchCritic, training
from tape2048.torch.embedding import embed_session
from tape2048.torch.heads import CriticHead, HeadInfo
from tape2048.torch.model import learning_rate, split_of_tower
from tape2048.torch.ranks import Ranks
from tape2048.torch.torch_critic import CriticInfo, TowerInfo, save_critic
from tape2048.torch.tower import (
    Tower,
    TowerConfig,
    open_tower,
    read_tensors,
    tensor_bytes,
    tower_sha256,
)
from tape2048.torch.training import Validation, auroc, train_critic

from ..critics import TILES, Seen, config, forget_checksum, lines, make_games, make_uneven, save_tower
from .test_nodes import run_ranks

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def trained(games: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a whole training, with everything in it that has a state."""
    out = tmp_path_factory.mktemp("trained") / "critic"
    train_critic(whole(games, out))
    return out


def whole(games: Path, out: Path, **changes: Any) -> Any:
    return config(games, out, tower_dropout=0.1, hidden=8, dropout=0.2, eval_steps=7, **changes)


def check_same(out: Path, expected: Path) -> None:
    """The same curve, and the same critics, bit for bit."""
    assert lines(out) == lines(expected)
    for name in ("best", "last"):
        assert (out / name / "model.safetensors").read_bytes() == (
            expected / name / "model.safetensors"
        ).read_bytes()


def test_a_critic_states_its_training(games: Path, trained: Path) -> None:
    critic = TorchCritic.load(trained / "best", "cpu")
    corpus = Corpus.open(games)
    info = critic.info
    assert (critic.thresholds, info.kind, info.corpus_hash, info.seed) == (
        TILES, "tokens", corpus.identity, 1,
    )  # fmt: skip
    val = corpus.split(salt=info.split.salt, **info.split.fractions)["val"]
    fetched = val.fetch(slice(None), thresholds=TILES)
    found = critic(fetched["tokens"])
    for i, tile in enumerate(TILES):
        measured = auroc(found[:, i], fetched["labels"][:, i], np.ones(len(found), np.float32))
        assert measured > 0.7, (tile, info.metrics)
    assert info.metrics["val_loss"] < 0.5
    assert info.step <= lines(trained)[-1]["step"] == 36
    kinds = [line["kind"] for line in lines(trained)]
    assert kinds.count("train") == 12
    assert kinds.count("val") == 6


def test_a_training_that_is_done_says_so_again(trained: Path, games: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "critic")
    for name in (f".{'0' * 16}.tmp", ".mine.17.tmp"):
        (tmp_path / "critic" / name).write_bytes(b"what SIGKILL left of a checkpoint")
    done = train_critic(whole(games, tmp_path / "critic"), Seen(36))
    assert done.ended == "all steps are made"
    assert [path.name for path in (tmp_path / "critic").glob(".*.tmp")] == [".mine.17.tmp"]
    (tmp_path / "critic/.mine.17.tmp").unlink()
    check_same(tmp_path / "critic", trained)


@pytest.mark.parametrize("ordered", [False, True])
def test_weights_leave_probabilities_calibrated(games: Path, tmp_path: Path, *, ordered: bool) -> None:
    """Rare labels counted many times over; the critic that is written says how often they are true."""
    made = config(games, tmp_path / "critic", pos_weight="0.5 2 6", ordered=ordered, epochs=6, augment="none")
    train_critic(made)
    critic = TorchCritic.load(tmp_path / "critic/last", "cpu")
    fetched = Corpus.open(games).split(train=0.8, val=0.2)["train"].fetch(slice(None), thresholds=TILES)
    found = critic(fetched["tokens"]).mean(axis=0)
    truth = fetched["labels"].mean(axis=0)
    np.testing.assert_allclose(found, truth, atol=0.06)
    weighted = [p * w / (p * w + 1 - p) for p, w in zip(truth, (0.5, 2, 6), strict=True)]
    assert np.abs(np.subtract(weighted, truth)).max() > 0.2, "without folding it would be this far off"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of one board alone, whose long ones reach more: a critic can only learn how often."""
    return make_uneven(tmp_path_factory.mktemp("uneven") / "selfplay", alike=True)


def shares(root: Path, part: str) -> tuple[Any, Any, Any]:
    """A board, the shares of the part's rows whose game reached each tile, and those of its games."""
    found = Corpus.open(root).split(train=0.8, val=0.2)[part]
    tokens = found.fetch(slice(0, 1), ("tokens",))["tokens"]
    return tokens, found.prevalence(TILES[:1]), found.run_labels(TILES[:1]).mean(axis=0)


@pytest.mark.parametrize("pos_weight", ["none", "dataset"])
def test_a_critic_learns_the_share_of_all_rows(uneven: Path, tmp_path: Path, pos_weight: str) -> None:
    made = config(
        uneven, tmp_path / "critic", per_run=12, epochs=12, learning_rate=0.05, thresholds=str(TILES[0]),
        augment="none", pos_weight=pos_weight,
    )  # fmt: skip
    train_critic(made)
    tokens, of_rows, of_games = shares(uneven, "train")
    found = TorchCritic.load(tmp_path / "critic/last", "cpu")(tokens)[0]
    assert found[0] == pytest.approx(of_rows[0], abs=0.04)
    assert abs(of_games[0] - of_rows[0]) > 0.2, "what it learned of rows that all count the same"


def test_losses_are_those_of_all_rows(uneven: Path, tmp_path: Path) -> None:
    """Of parameters that do not move, an epoch's mean loss and the validation's."""
    games = len(Corpus.open(uneven).split(train=0.8, val=0.2)["train"].runs)
    made = config(
        uneven, tmp_path / "critic", per_run=12, epochs=1, learning_rate=1e-12, thresholds=str(TILES[0]),
        batch_rows=12, log_steps=games,
    )  # fmt: skip
    train_critic(made)
    train, val = lines(tmp_path / "critic")
    for line, part in ((train, "train"), (val, "val")):
        assert (line["kind"], line["step"]) == (part, games)
        tokens, (share,), _ = shares(uneven, part)
        p = float(TorchCritic.load(tmp_path / "critic/last", "cpu")(tokens)[0, 0])
        loss = -share * math.log(p) - (1 - share) * math.log(1 - p)
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
    assert val["auroc"] == {str(TILES[0]): 0.5}
    assert p == pytest.approx(shares(uneven, "train")[1][0], abs=0.02), "where it begins"


def test_a_checkpoint_of_version_1_is_rejected(games: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "critic")
    checkpoint = tmp_path / "critic" / CHECKPOINT
    before = checkpoint.read_bytes()
    assert before.count(b'"version":2,"release"') == 1
    tensors = read_tensors(checkpoint)
    state = bytes(tensors["state"].numpy()).replace(b'"version":2,"release"', b'"version":1,"release"')
    tensors["state"] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    del tensors["sha256"]
    checkpoint.write_bytes(tensor_bytes(tensors))
    with pytest.raises(errors.StateError, match="checkpoint version 1; expected 2") as caught:
        train_critic(whole(games, tmp_path / "critic"))
    assert caught.value.hint == "this version cannot continue it: start over with another --out"


@pytest.mark.parametrize("teacher", ["", "critics/one"])
def test_a_training_that_an_earlier_version_started(
    games: Path, trained: Path, tmp_path: Path, teacher: str
) -> None:
    """It lacked some settings, and had others, whose defaults changed nothing."""
    shutil.copytree(trained, tmp_path / "critic")
    checkpoint = tmp_path / "critic" / CHECKPOINT
    tensors = read_tensors(checkpoint)
    state = json.loads(bytes(tensors["state"].numpy()))
    for name in ("player_name", "weight"):
        del state["config"][name]
    state["config"] |= {"targets": "outcome", "teacher": teacher}
    state |= {"ended": None, "release": "0.9.0"}
    tensors["state"] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    del tensors["sha256"]
    checkpoint.write_bytes(tensor_bytes(tensors))
    if not teacher:
        train_critic(whole(games, tmp_path / "critic"))
        state = json.loads(bytes(read_tensors(checkpoint)["state"].numpy()))
        assert state["release"] == __version__
        return
    with pytest.raises(errors.StateError, match="has teacher = 'critics/one', not None") as caught:
        train_critic(whole(games, tmp_path / "critic"))
    assert caught.value.hint == "this version has no teacher: start over with another --out"


def test_the_probe_of_embeddings(games: Path, trained: Path, tmp_path: Path) -> None:
    """From tokens to embeddings to a probe, which comes near the model that its tower is from."""
    root = tmp_path / "selfplay"
    shutil.copytree(games, root)
    tower = open_tower(trained / "best")
    for path in sorted(root.iterdir()):
        embed_session(Session.open(path), tower)
    probe = config(root, tmp_path / "probe", use_embeddings=True, tower=str(trained / "best"), threads=0)
    torch.set_num_threads(2)
    threads: set[int] = set()
    train_critic(probe, stop=lambda: threads.add(torch.get_num_threads()) is not None)
    assert threads == {1}  # the cores are for the batches
    assert torch.get_num_threads() == 2
    critic = TorchCritic.load(tmp_path / "probe/best", "cpu")
    assert critic.needs_embeddings
    assert critic.info.tower.sha256 == tower.sha256
    end_to_end = TorchCritic.load(trained / "best", "cpu").info.metrics["val_auroc"]
    for tile, found in critic.info.metrics["val_auroc"].items():
        assert found > end_to_end[tile] - 0.05


def test_what_another_training_left_is_refused(games: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "critic")
    with pytest.raises(errors.StateError, match=r"learning_rate = 0\.01, not 0\.02") as caught:
        train_critic(whole(games, tmp_path / "critic", learning_rate=0.02))
    assert "another --out" in str(caught.value.hint)
    make_games(tmp_path / "other", sessions=1)
    with pytest.raises(errors.StateError, match="corpus = "):
        train_critic(whole(tmp_path / "other", tmp_path / "critic"))
    path = tmp_path / "critic" / CHECKPOINT
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(errors.StateError):
            train_critic(whole(games, tmp_path / "critic"))
    header = int.from_bytes(content[:8], "little")
    for at in np.linspace(8 + header, len(content) - 1, 8, dtype=np.int64).tolist():
        replace_file(path, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(errors.StateError, match="the file is damaged: its SHA-256"):
            train_critic(whole(games, tmp_path / "critic"))
    replace_file(path, (trained / "last/model.safetensors").read_bytes())
    with pytest.raises(errors.StateError, match="not a checkpoint of a training"):
        train_critic(whole(games, tmp_path / "critic"))
    for state in (b'{"x":"\xff"}', b'{"x":' + b"[" * 50_000):
        replace_file(path, tensor_bytes({"state": torch.tensor(list(state), dtype=torch.uint8)}))
        with pytest.raises(errors.StateError, match="not a checkpoint of a training"):
            train_critic(whole(games, tmp_path / "critic"))


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(games: Path, tmp_path: Path) -> None:
    """Two ranks with half the batch each: the same rows, the same mean gradient."""
    alone = config(games, tmp_path / "alone", batch_rows=128, eval_steps=5, steps_max=11, augment="none")
    train_critic(alone)
    both = config(games, tmp_path / "both", batch_rows=64, eval_steps=5, steps_max=11, augment="none")
    found = run_ranks(tmp_path, [both, both])
    assert [code for code, _, _ in found] == [0, 0], found
    one, two = lines(tmp_path / "alone"), lines(tmp_path / "both")
    assert [(line["kind"], line["step"]) for line in one] == [(line["kind"], line["step"]) for line in two]
    for mine, theirs in zip(one, two, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert one[-1]["rows"] == two[-1]["rows"]


def test_the_error_names_rows_that_are_not_finite(games: Path, trained: Path, tmp_path: Path) -> None:
    """One embedding of one row is NaN: the training names the batch, and keeps what it had."""
    root = tmp_path / "selfplay"
    shutil.copytree(games, root)
    tower = open_tower(trained / "best")
    for path in sorted(root.iterdir()):
        embed_session(Session.open(path), tower)
    corpus = Corpus.open(root)
    train = corpus.split(train=0.8, val=0.2)["train"]
    order = train.batches(128, seed=1, fields=("row",), drop_last=True)
    batch = order.buffer()
    order.fill(batch, epoch=0, index=9)
    row = int(batch["row"][5])
    run = train.runs[int(np.searchsorted(train.row_starts, row, "right")) - 1]
    inside = (
        int(run["first_row"])
        + row
        - int(train.row_starts[np.searchsorted(train.row_starts, row, "right") - 1])
    )
    session = corpus.sessions[int(run["session"])]
    values = np.load(session.path / "embeddings.bf16.npy", mmap_mode="r+")
    values[inside, 3] = 0x7FC0
    values.flush()
    forget_checksum(session.path)
    made = config(root, tmp_path / "probe", use_embeddings=True, per_run=None)
    with pytest.raises(
        errors.TrainingError, match=r"at step 10, the loss is nan.*batch 9 of epoch 0"
    ) as caught:
        train_critic(made)
    assert f"The embedding of row {row} (run {run['run_id']} of {session.name}) is not finite" in str(
        caught.value
    )
    with pytest.raises(errors.TrainingError, match="batch 9 of epoch 0"):
        train_critic(made)  # from the checkpoint of step 5, which is whole


def test_a_nan_loss_leaves_the_last_checkpoint(games: Path, tmp_path: Path) -> None:
    made = config(games, tmp_path / "critic", learning_rate=1e30, warmup_steps=0, checkpoint_steps=1)
    with pytest.raises(errors.TrainingError, match=r"rows .* of the training part"):
        train_critic(made)
    for path in (tmp_path / "critic").rglob("*.safetensors"):
        from safetensors.torch import load_file

        model = {name: tensor for name, tensor in load_file(path).items() if name.startswith("model.")}
        assert all(bool(tensor.isfinite().all()) for tensor in model.values())


def test_it_ends_when_it_is_no_better(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1.0, 0.5, 0.7, 0.6, 0.4])
    monkeypatch.setattr(training, "validate", lambda *_: Validation(next(losses), 0.7, {}, 1))
    done = train_critic(config(games, tmp_path / "critic", eval_steps=2, patience=2))
    assert done.ended == "no better for 2 validations"
    assert (done.progress.done, done.progress.figures["best_step"]) == (8, 4)
    assert TorchCritic.load(tmp_path / "critic/best", "cpu").info.step == 4
    assert TorchCritic.load(tmp_path / "critic/last", "cpu").info.step == 8
    again = train_critic(config(games, tmp_path / "critic", eval_steps=2, patience=2))
    assert again.ended == done.ended


REFUSED: list[tuple[dict[str, Any], type[errors.TapeError], str]] = [
    ({"where": "score > 1e9"}, errors.EmptyCorpusError, "filter"),
    ({"where": "run_id = 1 AND score > 0", "val_share": 0.001}, errors.EmptyCorpusError, "part val"),
    ({"batch_rows": 65_536}, errors.EmptyCorpusError, "lower batch_rows|training part"),
    ({"use_embeddings": True}, errors.ColumnError, "no embeddings"),
    ({"device": "cuda:99"}, errors.ConfigError, "cuda:99"),
    ({"thresholds": "8192 4096"}, errors.ConfigError, "ascending"),
    ({"thresholds": "100"}, errors.ConfigError, "powers of two"),
    ({"val_share": 0.0}, errors.ConfigError, "val_share"),
    ({"val_share": 0.5, "test_share": 0.5}, errors.ConfigError, "val_share"),
    ({"pos_weight": "1 2"}, errors.ConfigError, "each of 3 thresholds"),
    ({"learning_rate": 1e38}, errors.ConfigError, "at most 1e\\+30"),
    ({"tower_heads": 3}, errors.ConfigError, "multiple of tower_heads"),
    ({"tower": "/nowhere"}, errors.MissingPathError, "no such file"),
    ({"tower": "nowhere_at_all:f"}, errors.ConfigError, "no module"),
    ({"pool_sessions": 2}, errors.ConfigError, "pool_sessions"),
]


def test_invalid_settings_are_refused(games: Path, tmp_path: Path) -> None:
    for changes, kind, said in REFUSED:
        with pytest.raises(kind, match=said):
            train_critic(config(games, tmp_path / "critic", **changes))
        assert not (tmp_path / "critic").exists(), changes
    with pytest.raises(errors.ConfigError, match="out: found s3://bucket/critic, expected a directory"):
        train_critic(msgspec.structs.replace(config(games, tmp_path), out="s3://bucket/critic"))


def test_embeddings_of_another_tower_are_refused(games: Path, trained: Path, tmp_path: Path) -> None:
    root = tmp_path / "selfplay"
    shutil.copytree(games, root)
    first, second = sorted(root.iterdir())
    embed_session(Session.open(first), open_tower(trained / "best"))
    made = config(root, tmp_path / "probe", use_embeddings=True)
    with pytest.raises(errors.ColumnError, match="no embeddings"):
        train_critic(made)
    other = open_tower(trained / "last")
    if other.sha256 == open_tower(trained / "best").sha256:
        with torch.no_grad():
            next(iter(other.module.parameters())).add_(1)
        other = other._replace(sha256="e" * 64)
    embed_session(Session.open(second), other)
    with pytest.raises(errors.CorpusError, match=r"found bf16 .* model_sha .*; expected bf16"):
        train_critic(made)
    embed_session(Session.open(first), other, force=True)
    with pytest.raises(errors.ColumnError, match="found embeddings of the tower"):
        train_critic(msgspec.structs.replace(made, tower=str(trained / "best")))


def test_the_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    made = config(tmp_path, tmp_path, learning_rate=2.0, warmup_steps=10)
    rates = [learning_rate(made, step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert rates[60] == pytest.approx(1.0)
    assert rates[109] == pytest.approx(1 + math.cos(math.pi * 0.99))
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_trackers_are_requested(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    board = SimpleNamespace(
        add_scalar=lambda name, value, step: seen.append((name, value, step)),
        close=lambda: seen.append(("closed",)),
    )
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda path: board)
    )
    started: dict[str, Any] = {}
    logged: list[Any] = []
    run = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append("finished")
    )
    wandb = SimpleNamespace(init=lambda **how: started.update(how) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train_critic(config(games, tmp_path / "critic", tensorboard=True, wandb_project="p", steps_max=6))
    losses = {step: value for name, value, step in seen[:-1] if name == "train/loss"}
    found = {line["step"]: line["loss"] for line in lines(tmp_path / "critic") if line["kind"] == "train"}
    assert losses == found
    assert any(name == "val/auroc/8192" for name, *_ in seen)
    assert seen[-1] == ("closed",)
    assert started["project"] == "p"
    assert started["config"]["steps_max"] == 6
    assert (logged[0][0], logged[-1]) == (3, "finished")


@pytest.mark.parametrize(
    ("name", "setting"), [("torch.utils.tensorboard", "tensorboard"), ("wandb", "wandb_project")]
)
def test_trackers_that_are_not_installed(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    value: Any = True if setting == "tensorboard" else "p"
    with pytest.raises(errors.MissingPackageError) as caught:
        train_critic(config(games, tmp_path / "critic", **{setting: value}))
    assert "pip install" in str(caught.value.hint)


def test_a_checkpoint_has_the_loss_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks go on from the first one's file: its own sum would count in the place of the others'."""
    games = make_games(tmp_path / "games")
    monkeypatch.setattr(Ranks, "mean", lambda _self, _value: 5.0)
    train_critic(config(games, tmp_path / "critic", log_steps=100, checkpoint_steps=2, steps_max=3))
    state = read_tensors(tmp_path / "critic" / CHECKPOINT)["state"].numpy().tobytes()
    assert msgspec.json.decode(state)["loss_sum"] == 5.0


def test_it_goes_on_beside_sessions_that_came_later(tmp_path: Path) -> None:
    """A recorder writes on into the same directory: a condition leaves the rows of before."""
    games = make_games(tmp_path / "games", sessions=1)
    train_critic(config(games, tmp_path / "critic", steps_max=2))
    make_games(games, sessions=1, name="later")
    with pytest.raises(errors.StateError, match="has corpus = ") as caught:
        train_critic(config(games, tmp_path / "critic", steps_max=2))
    assert "--where" in caught.value.hint
    same = config(games, tmp_path / "critic", steps_max=2, where="model = 'toy'")
    assert train_critic(same).ended == "all steps are made"
    with pytest.raises(errors.StateError, match=r"where = '', not .*corpus = "):
        train_critic(config(games, tmp_path / "critic", steps_max=2, where="run_id > 5"))


SIZES = TowerConfig(dim=8, layers=1, heads=2, ffn=8)


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


def test_a_tower_that_knows_games_held_out_is_told_of(critic: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"val_share": 0.1, "test_share": 0.2, "split_salt": "a"}, None),
        ({"val_share": 0.2, "test_share": 0.0, "split_salt": "a"}, None),
        ({"val_share": 0.1, "test_share": 0.3, "split_salt": "a"}, "(train 0.7)"),
        ({"val_share": 0.1, "test_share": 0.2}, "(train 0.7, split_salt 'a')"),
    ]
    for split, said in cases:
        found = split_of_tower(config(tmp_path, tmp_path / "second", tower=str(critic), **split))
        assert (found is None) if said is None else (said in str(found)), split
    save_tower(tmp_path / "tower", Tower(SIZES))
    for tower in ("", "towers:make", str(tmp_path / "tower")):  # nobody knows their games
        assert split_of_tower(config(tmp_path, tmp_path / "second", tower=tower)) is None


def test_a_training_tells_its_user(critic: Path, games: Path, tmp_path: Path) -> None:
    view = Seen()
    train_critic(config(games, tmp_path / "second", tower=str(critic), steps_max=1), view)
    assert any("flatter" in event for event in view.events)
