"""Critics: directories, and probabilities of boards and of embeddings."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tape2048 import errors
from tape2048.critic.facts import SplitInfo
from tape2048.files.durable import fsync_path
from tape2048.game.rules import exps_to_boards
from tape2048.torch import TorchCritic
from tape2048.torch.embedding import bf16_bits
from tape2048.torch.heads import CriticHead, HeadInfo
from tape2048.torch.torch_critic import CriticInfo, TowerInfo, save_critic
from tape2048.torch.tower import Tower, TowerConfig, open_tower, tower_sha256

from ..critics import save_tower
from ..naming import Naming

TILES = (8192, 16384, 32768)
SMALL = TowerConfig(dim=8, layers=1, heads=2, ffn=8)


def info(**changes: Any) -> CriticInfo:
    settings: dict[str, Any] = {
        "thresholds": list(TILES), "kind": "tokens", "tower": TowerInfo(sha256="0" * 64, config=SMALL),
        "head": HeadInfo(in_dim=8), "split": SplitInfo(fractions={"train": 0.9, "val": 0.1}),
    }  # fmt: skip
    return CriticInfo(**{**settings, **changes})


@pytest.fixture
def tower() -> Tower:
    torch.manual_seed(3)
    return Tower(SMALL).eval()


@pytest.fixture
def tokens() -> Any:
    return np.random.default_rng(0).integers(0, 16, (50, 16)).astype(np.uint8)


def test_a_critic_of_tokens(tmp_path: Path, tower: Tower, tokens: Any) -> None:
    head = CriticHead(8, TILES)
    written = save_critic(tmp_path / "critic", info(step=7, metrics={"val_loss": 0.5}), head, tower)
    critic = TorchCritic.load(tmp_path / "critic", "cpu")
    assert critic.info == written
    assert (critic.thresholds, critic.kind, critic.needs_embeddings) == (TILES, "tokens", False)
    found = critic(exps_to_boards(tokens))
    assert (found.shape, found.dtype) == ((50, 3), np.float32)
    with torch.no_grad():
        expected = torch.sigmoid(head(tower(torch.from_numpy(tokens)))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(critic(tokens), found)
    few = TorchCritic.load(tmp_path / "critic", "cpu", batch_rows=7)
    np.testing.assert_allclose(few(exps_to_boards(tokens)), found, atol=1e-6)
    assert critic(np.empty(0, np.uint64)).shape == (0, 3)
    # Its tower can be used as one, under the same name.
    assert open_tower(tmp_path / "critic").sha256 == tower_sha256(tower)


def test_a_critic_of_embeddings(tmp_path: Path, tower: Tower, tokens: Any) -> None:
    save_tower(tmp_path / "tower", tower)
    about = TowerInfo(sha256=tower_sha256(tower))
    head = CriticHead(8, TILES, hidden=4)
    probe = info(kind="embeddings", tower=about, head=HeadInfo(in_dim=8, hidden=4))
    save_critic(tmp_path / "probe", probe, head)
    critic = TorchCritic.load(tmp_path / "probe", "cpu")
    assert critic.needs_embeddings
    with pytest.raises(errors.ModelError, match="found boards, expected embeddings"):
        critic(exps_to_boards(tokens))
    with torch.no_grad():
        bits = bf16_bits(tower(torch.from_numpy(tokens)))
    bits.flags.writeable = False
    found = critic.from_embeddings(bits)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(critic.from_embeddings(values), found)
    with pytest.raises(errors.ColumnError, match=r"\[N, 8\]"):
        critic.from_embeddings(bits[:, :5])
    # With the tower that made them, boards will do; with another one they will not.
    both = TorchCritic.load(tmp_path / "probe", "cpu", tower=tmp_path / "tower")
    np.testing.assert_array_equal(both(exps_to_boards(tokens)), found)
    save_tower(tmp_path / "other", Tower(SMALL))
    with pytest.raises(errors.ModelError, match="embeddings that this critic was trained on"):
        TorchCritic.load(tmp_path / "probe", "cpu", tower=tmp_path / "other")
    with pytest.raises(errors.ModelError, match="no built-in tower"):
        open_tower(tmp_path / "probe")


def test_ordered_probabilities_are_ordered(tmp_path: Path, tower: Tower, tokens: Any) -> None:
    torch.manual_seed(0)
    head = CriticHead(8, TILES, ordered=True)
    with torch.no_grad():
        head.last.weight.mul_(50)
    save_critic(tmp_path / "critic", info(head=HeadInfo(in_dim=8, ordered=True)), head, tower)
    found = TorchCritic.load(tmp_path / "critic", "cpu")(exps_to_boards(tokens))
    assert (np.diff(found, axis=1) <= 0).all()


def test_somebody_elses_tower_is_named_by_who_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Any
) -> None:
    (tmp_path / "their_tower.py").write_text(
        "import torch\n"
        "class T(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line = torch.nn.Linear(16, 8)\n"
        "    def forward(self, x):\n"
        "        return self.line(x.float())\n"
        "def make(checkpoint):\n"
        "    return T()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from tape2048.torch.tower import make_tower

    module = make_tower("their_tower:make")
    about = TowerInfo(sha256=tower_sha256(module), factory="their_tower:make")
    save_critic(tmp_path / "critic", info(tower=about), CriticHead(8, TILES), module)
    with pytest.raises(errors.ModelError, match="found no tower, expected their_tower:make") as caught:
        TorchCritic.load(tmp_path / "critic", "cpu")
    assert "their_tower:make" in str(caught.value.hint)
    critic = TorchCritic.load(tmp_path / "critic", "cpu", tower="their_tower:make")
    assert critic(tokens).shape == (50, 3)


def test_boards_that_are_none(tower: Tower) -> None:
    critic = TorchCritic(info(), CriticHead(8, TILES), tower)
    others = [
        np.zeros((2, 2), np.uint64), np.zeros(2), np.array(5, np.uint64), np.zeros((3, 16), np.int64),
        np.zeros((1, 3, 16), np.uint8), [[0] * 16], [[0], [0, 1]], "board",
    ]  # fmt: skip
    for boards in others:
        with pytest.raises(ValueError, match="board"):
            critic(boards)
    with pytest.raises(ValueError, match=r"uint8 of shape \(3, 15\); expected .* u64\[N\] or .* u8\[N, 16\]"):
        critic(np.zeros((3, 15), np.uint8))
    with pytest.raises(ValueError, match="at most 15"):
        critic(np.full((1, 16), 16, np.uint8))


def test_boards_may_be_a_list(tower: Tower) -> None:
    """Also one with boards on both sides of 2**63, of which NumPy makes floats; and an empty one."""
    critic = TorchCritic(info(), CriticHead(8, TILES), tower)
    boards = [0xDCBA_6789_5432_1210, 0x1000_0000_0000_0001]
    assert np.array_equal(critic(boards), critic(np.array(boards, np.uint64)))
    assert critic([]).shape == (0, 3)


def test_damage_is_named(tmp_path: Path, tower: Tower) -> None:
    path = tmp_path / "critic"
    save_critic(path, info(), CriticHead(8, TILES), tower)
    text, model = path / "critic.json", path / "model.safetensors"
    whole = {file: file.read_bytes() for file in (text, model)}

    def refused(file: Path, content: bytes, said: str) -> None:
        file.write_bytes(content)
        with pytest.raises(errors.ModelError, match=said) as caught:
            TorchCritic.load(path, "cpu")
        assert str(path) in str(caught.value)
        file.write_bytes(whole[file])

    flipped = whole[model][:-1] + bytes([whole[model][-1] ^ 1])
    refused(model, flipped, "SHA-256")
    model.write_bytes(flipped)
    with pytest.raises(errors.ModelError, match="SHA-256"):
        open_tower(path)  # else embeddings would be made with it, under a name of their own
    refused(model, whole[model][:50], "not a safetensors file")
    refused(text, b"{}", "malformed")
    refused(text, b" " * (1 << 24) + b"{}", "has 16777218 bytes; expected at most 16777216")
    refused(text, whole[text].replace(b'"version": 2', b'"version": 3'), "version 3")
    refused(text, whole[text].replace(b'"version": 2', b'"version": 1'), "version 1; expected 2")
    refused(text, whole[text].replace(b"8192,", b"8191,"), "powers of two")
    refused(text, whole[text].replace(b'"in_dim": 8', b'"in_dim": 9'), "head's parameters")
    refused(text, whole[text].replace(b'"layers": 1', b'"layers": 2'), "tower's parameters")
    text.unlink()
    with pytest.raises(errors.ModelError, match="not a critic"):
        TorchCritic.load(path, "cpu")


def test_devices_that_are_not_there(tmp_path: Path, tower: Tower) -> None:
    save_critic(tmp_path / "critic", info(), CriticHead(8, TILES), tower)
    for name in ("cuda:99", "tpu", "meta", "cpu:x"):
        with pytest.raises(errors.ConfigError, match="expected"):
            TorchCritic.load(tmp_path / "critic", name)


def saved(path: Path, tower: Tower, step: int) -> None:
    save_critic(path, info(step=step), CriticHead(8, TILES), tower, replace=True)


def test_other_files_of_a_critic_stay(tmp_path: Path, tower: Tower, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "critic"
    naming = Naming(tmp_path, monkeypatch)
    saved(path, tower, 1)
    (path / "report.html").write_text("about step 1")
    fsync_path(path / "report.html")
    for step in (2, 3):
        saved(path, tower, step)
        assert TorchCritic.load(path, "cpu").info.step == step
        assert (path / "report.html").read_text() == "about step 1"
    assert sorted(file.name for file in path.iterdir()) == ["critic.json", "model.safetensors", "report.html"]
    assert [file.name for file in tmp_path.iterdir()] == ["critic"]
    naming.assert_flushed("critic", "critic", "critic")


def test_a_file_that_goes_meanwhile_is_let_go(
    tmp_path: Path, tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "critic"
    saved(path, tower, 1)
    (path / "draft").write_text("")
    monkeypatch.setattr("tape2048.files.durable.sweep_drafts", lambda *_: (path / "draft").unlink())
    saved(path, tower, 2)
    assert TorchCritic.load(path, "cpu").info.step == 2
    assert not (path / "draft").exists()


@pytest.mark.parametrize("other", ["folder", "link", "notes.txt", "file"])
def test_what_is_no_former_version_is_never_replaced(tmp_path: Path, tower: Tower, other: str) -> None:
    path = tmp_path / "critic"
    if other == "file":
        path.write_text("mine")
    else:
        saved(path, tower, 1)
    if other == "folder":
        (path / other).mkdir()
    elif other == "link":
        (path / other).symlink_to("critic.json")
    elif other == "notes.txt":
        (path / "critic.json").unlink()
        (path / other).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(errors.NameTakenError, match="exists already" if other == "file" else other):
        saved(path, tower, 2)
    assert sorted(tmp_path.rglob("*")) == before
    assert other == "file" or "model.safetensors" in {file.name for file in path.iterdir()}


HEAD_TILES = (4096, *TILES)
shares = st.floats(1e-4, 1 - 1e-4)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@given(
    seed=st.integers(0, 2**32), scale=st.floats(0, 1e4), hidden=st.sampled_from([None, 3])
)  # fmt: skip
@settings(max_examples=60)
def test_ordered_probabilities_never_rise(seed: int, scale: float, hidden: int | None) -> None:
    torch.manual_seed(seed)
    head = CriticHead(5, HEAD_TILES, hidden, ordered=True)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    logits = head(torch.randn(33, 5) * scale)
    assert bool((logits[:, 1:] <= logits[:, :-1]).all())


@pytest.mark.parametrize("ordered", [False, True])
def test_the_linear_probe_is_linear(*, ordered: bool) -> None:
    torch.manual_seed(1)
    head = CriticHead(6, HEAD_TILES, ordered=ordered)
    x = torch.randn(9, 6)
    raw = x.numpy() @ head.last.weight.detach().numpy().T + head.last.bias.detach().numpy()
    if ordered:
        falls = np.log1p(np.exp(raw[:, 1:]))
        raw[:, 1:] = raw[:, :1] - np.cumsum(falls, axis=1)
    np.testing.assert_allclose(head(x).detach().numpy(), raw, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [None, 4])
def test_inputs_are_cast_inside(hidden: int | None) -> None:
    head = CriticHead(8, HEAD_TILES, hidden).eval()
    x = torch.randn(5, 8).to(torch.bfloat16)
    assert torch.equal(head(x), head(x.float()))
    assert head(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), head(x.float())), "autocast stays outside"


@given(st.lists(shares, min_size=4, max_size=4), st.booleans(), st.sampled_from([None, 3]))
@settings(max_examples=40)
def test_it_begins_with_the_prior(prior: list[float], ordered: bool, hidden: int | None) -> None:
    if ordered:
        prior = sorted(prior, reverse=True)
    head = CriticHead(3, HEAD_TILES, hidden, ordered=ordered)
    head.set_prior(prior)
    found = torch.sigmoid(head(torch.randn(2, 3))).detach().numpy()
    # The ordered form keeps equal ones a thousandth of a logit apart.
    np.testing.assert_allclose(found, [prior, prior], atol=2e-3)


def test_the_prior_of_what_never_happened_is_finite() -> None:
    head = CriticHead(3, HEAD_TILES)
    head.set_prior([1.0, 0.5, 0.0, 0.0])
    found = torch.sigmoid(head(torch.randn(2, 3))).detach().numpy()[0]
    assert found[0] > 0.9999
    assert 0 < found[3] < 0.0001


@given(st.lists(shares, min_size=4, max_size=4), st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
@settings(max_examples=40)
def test_a_weight_is_folded_back(truth: list[float], weights: list[float]) -> None:
    """What minimises the weighted loss of rows with these probabilities becomes these probabilities."""
    head = CriticHead(2, HEAD_TILES)
    minimum = [logit(p * w / (p * w + 1 - p)) for p, w in zip(truth, weights, strict=True)]
    with torch.no_grad():
        head.last.weight.zero_()
        head.last.bias.copy_(torch.tensor(minimum))
    head.fold_pos_weight(weights)
    found = torch.sigmoid(head(torch.zeros(1, 2)).double()).detach().numpy()[0]
    np.testing.assert_allclose(found, truth, atol=1e-4)


def test_invalid_arguments_of_a_head_are_refused() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        ((0, HEAD_TILES), {}), ((3, HEAD_TILES, 0), {}), ((3, (100,)), {}),
        ((3, (16384, 8192)), {"ordered": True}), ((3, HEAD_TILES), {"dropout": 1.0}),
    ]  # fmt: skip
    for args, options in cases:
        with pytest.raises(ValueError, match="expected"):
            CriticHead(*args, **options)
    for weights in ([1.0], [1, 1, 1, 0], [1, 1, 1, math.inf], [1, 1, 1, math.nan]):
        with pytest.raises(ValueError, match="weights"):
            CriticHead(3, HEAD_TILES).fold_pos_weight(weights)
    with pytest.raises(ValueError, match="cannot be corrected"):
        CriticHead(2, HEAD_TILES, ordered=True).fold_pos_weight([1.0, 1.0, 1.0, 1.0])
