"""Files of n-tuple critics: golden bytes, round trips, and refusals of damaged and foreign files."""

import hashlib
import json
import lzma
import math
import runpy
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests import reference

from tape2048.critic import NTupleCritic
from tape2048.critic.facts import CriticFacts, PlayedBy, SplitInfo
from tape2048.critic.shipped import SHIPPED, critic_path
from tape2048.errors import ChecksumError, FormatError, ModelError, StorageError, TapeError, TruncatedError
from tape2048.files.safetensors import encode
from tape2048.ntuple.network import Network, NetworkLayout, save_network

DATA = Path(__file__).parents[3] / "data"
GOLDEN = DATA / "golden.critic"
FACTS = CriticFacts(
    thresholds=[64, 256], corpus_hash="c" * 64, where="id < 9",
    split=SplitInfo(fractions={"train": 0.75, "val": 0.25}, salt="é"),
    players=[PlayedBy("toy:depth=2", "a" * 64, 8)],
    seed=3, step=24, metrics={"loss": 0.25}, training={"kind": "ntuple"},
)  # fmt: skip


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DATA / "make_golden.py"))


def random_critic(tiles: tuple[int, ...], stages: tuple[int, ...], *, share: float = 0.02) -> NTupleCritic:
    """A critic with some weights, of all sizes."""
    rng = np.random.default_rng(len(tiles))
    layout = NetworkLayout.of(["0125", "4567"], stages)
    width = 1 << (len(tiles) - 1).bit_length()
    weights = rng.integers(-32768, 32768, (layout.entries, width)).astype(np.int16)
    weights[rng.random(layout.entries) > share] = 0
    weights[:, len(tiles) :] = 0
    facts = msgspec.structs.replace(FACTS, thresholds=list(tiles))
    return NTupleCritic(facts, layout, weights, 1 / 1024)


def test_the_golden_critic(script: dict[str, Any]) -> None:
    critic = NTupleCritic.load(GOLDEN)
    assert (critic.info, critic.thresholds, critic.step) == (FACTS, (64, 256), 1 / 32)
    assert critic.layout == NetworkLayout.of(["0125"], [128])
    assert critic.sha256 == hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
    expected = np.zeros((2, 16, 16, 16, 16, 2), np.int16)
    for stage, weights in script["CRITIC_WEIGHTS"].items():
        for exps, values in weights.items():
            expected[(stage, *exps)] = values
    assert (critic.weights == expected.reshape(-1, 2)).all()
    assert repr(critic) == "<NTupleCritic: ntuple -> (64, 256), 2 stages>"


def test_what_is_saved_are_the_golden_bytes(
    tmp_path: Path, plain: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape2048.files.safetensors.__version__", "1.0.0")
    size = NTupleCritic.load(GOLDEN).save(tmp_path / "again.critic")
    content = (tmp_path / "again.critic").read_bytes()
    assert len(content) == size
    assert lzma.decompress(content) == lzma.decompress(GOLDEN.read_bytes()) == plain


def test_the_golden_critics_probabilities() -> None:
    """Every image of an empty board looks up the same weight; 64 is on the last board."""
    boards = [[0] * 16, [7] * 16, [6] + [0] * 15]
    found = NTupleCritic.load(GOLDEN)(np.array([reference.pack(board) for board in boards], np.uint64))

    def sigmoid(logit: float) -> float:
        return 1 / (1 + math.exp(-logit / 32))

    # Of the 8 images of the last board, two have its 64 in cell 0, which no weight is about.
    last = reference.symmetries(boards[2])
    expected = [
        [sigmoid(8 * 12), sigmoid(-8 * 34)],
        [1.0, sigmoid(-8 * 300)],
        [1.0, sigmoid(-34 * (8 - sum(6 in [image[c] for c in (0, 1, 2, 5)] for image in last)))],
    ]
    assert np.allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("tiles", "stages", "preset"),
    [((64,), (), 0), ((16, 128), (32, 256), 6), ((64, 256, 1024), (256,), 0),
     (tuple(2 << i for i in range(15)), (), 0)],
)  # fmt: skip
def test_a_critic_comes_back(
    tmp_path: Path, tiles: tuple[int, ...], stages: tuple[int, ...], preset: int
) -> None:
    critic = random_critic(tiles, stages)
    size = critic.save(tmp_path / "a.critic", preset=preset)
    assert size == (tmp_path / "a.critic").stat().st_size
    again = NTupleCritic.load(tmp_path / "a.critic")
    assert (again.info, again.layout, again.step, critic.sha256) == (
        critic.info, critic.layout, critic.step, "",
    )  # fmt: skip
    assert again.thresholds == tiles
    assert (again.weights == critic.weights).all()
    critic.save(tmp_path / "b.critic", preset=preset)
    assert (tmp_path / "a.critic").read_bytes() == (tmp_path / "b.critic").read_bytes()


def test_a_critic_replaces_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "a.critic"
    random_critic((16, 128), ()).save(path, preset=0)
    mapped = NTupleCritic.load(path)
    mapped.save(path)
    assert (NTupleCritic.load(path).weights == mapped.weights).all()
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError):
        mapped.save(tmp_path / "directory")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.critic", "directory"]


def test_boards_are_packed_or_tokens() -> None:
    critic = random_critic((16, 128), (32, 256))
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 12, (50, 16)).astype(np.uint8)
    boards = np.array([reference.pack(row) for row in tokens.tolist()], np.uint64)
    found = critic(boards)
    assert (found.shape, found.dtype) == ((50, 2), np.float32)
    assert (critic(tokens) == found).all()
    assert (critic(boards[::2]) == found[::2]).all()
    assert critic(boards[:0]).shape == (0, 2)
    with pytest.raises(ModelError, match="takes boards"):
        critic.from_embeddings(np.zeros((2, 8), np.uint16))


@pytest.mark.parametrize(
    "boards",
    [np.zeros(3, np.int64), np.zeros(3), np.uint64(3), np.zeros((3, 15), np.uint8), np.zeros((3, 16)),
     np.full((3, 16), 16, np.uint8), np.zeros((2, 2, 16), np.uint8), ["a"]],
)  # fmt: skip
def test_other_arrays_are_refused(boards: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|exponents"):
        random_critic((64,), ())(boards)


@pytest.mark.parametrize("extreme", [-32768, 32767])
def test_the_largest_weights_give_probabilities(extreme: int) -> None:
    layout = NetworkLayout.of(["0125", "4567"], (32, 256))
    rng = np.random.default_rng(2)
    weights = rng.choice(np.array([extreme, extreme, -32768, 32767], np.int16), (layout.entries, 2))
    critic = NTupleCritic(msgspec.structs.replace(FACTS, thresholds=[16, 128]), layout, weights, 1.0)
    found = critic(rng.integers(0, 8, (2000, 16)).astype(np.uint8))
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[:, 0] >= found[:, 1]).all()


@pytest.fixture(scope="module")
def plain(script: dict[str, Any]) -> bytes:
    return script["critic"]()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(path: Path, content: bytes, kind: type[TapeError] = FormatError, said: str | None = None) -> None:
    with pytest.raises(kind, match=said) as caught:
        NTupleCritic.load(written(path, content))
    assert caught.value.path == str(path)


def test_a_damaged_file_is_refused(tmp_path: Path, plain: bytes) -> None:
    """Read as a network's file, whose tests have more kinds of damage."""
    begin = 8 + struct.unpack_from("<Q", plain)[0]
    packed = GOLDEN.read_bytes()
    for end in (0, 7, 100, begin, begin + 1, len(plain) - 1):
        refused(tmp_path / "a", plain[:end], TruncatedError)
        refused(tmp_path / "a", packed[: end * len(packed) // len(plain)], TruncatedError)
    for content in (plain, packed):
        refused(tmp_path / "a", content + b"\0")
    for at in (0, 9, len(packed) // 2, len(packed) - 1):
        refused(tmp_path / "a", packed[:at] + bytes([packed[at] ^ 4]) + packed[at + 1 :])
    for at in (begin, len(plain) // 2, len(plain) - 1):
        refused(tmp_path / "a", plain[:at] + bytes([plain[at] ^ 16]) + plain[at + 1 :], ChecksumError)


def build(arrays: dict[str, Any] | None = None, facts: Any = None, **texts: str) -> bytes:
    if arrays is None:
        arrays = {"0/0123": np.zeros((2, 65536), np.int16)}
    about = msgspec.json.encode(FACTS) if facts is None else facts
    texts = {
        "format": "tape2048 n-tuple critic 1", "stages": "", "step": "0.03125",
        "facts": about if isinstance(about, str) else about.decode(), **texts,
    }  # fmt: skip
    return b"".join(encode(arrays, texts))


def facts(**changes: Any) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(FACTS), **changes})


def zeros(tiles: int, cells: int = 4, dtype: type = np.int16) -> Any:
    return np.zeros((tiles, 16**cells), dtype)


NO_CRITICS = [
    (build(format="tape2048 n-tuple critic 2"), "found the format 'tape2048 n-tuple critic 2'"),
    (build(format="pt"), "found the format 'pt', expected 'tape2048 n-tuple critic 1'"),
    (build({}), "at least one"),
    (build({"0/01": zeros(2)}), "4 to 6"),
    (build({"0/0132": zeros(2)}), "ascending"),
    (build(stages="64"), "found arrays"),
    (build(stages="65"), "in ascending order"),
    (build(stages="0"), "in ascending order"),
    (build(stages="many"), "does not describe a critic"),
    (build(stages="9" * 5000), "does not describe a critic"),
    (build({"0/0123": zeros(2), "1/0123": zeros(2)}), "found arrays"),
    (build({"0/0123": zeros(2), "more": zeros(2)}), "found arrays"),
    (build({"0/012A": zeros(2)}), "found arrays"),
    (build({"0/0123": zeros(1)}), r"found int16 \(1, 65536\), expected int16 \(2, 65536\)"),
    (build({"0/0123": zeros(3)}), "expected int16"),
    (build({"0/0123": zeros(2, 5)}), "expected int16"),
    (build({"0/0123": zeros(2, 4, np.float32)}), "found float32"),
    (build({"0/0123": zeros(2, 4, np.uint16)}), "found uint16"),
    (build({"0/0123": np.zeros(2 * 65536, np.int16)}), "expected int16"),
    (build(step="0"), "in units of 0.0 logits"),
    (build(step="-1"), "in units of -1.0 logits"),
    (build(step="1.5"), "in units of 1.5 logits"),
    (build(step="nan"), "in units of nan logits"),
    (build(step="inf"), "in units of inf logits"),
    (build(step="small"), "does not describe a critic"),
    (build(facts="["), "does not describe a critic"),
    (build(facts="{}"), "does not describe a critic"),
    (build(facts='{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), "does not describe a critic"),
    (build(facts=facts(thresholds=[])), "does not describe a critic"),
    (build(facts=facts(thresholds=[64, 64])), "different powers of two"),
    (build(facts=facts(thresholds=[64, 100])), "different powers of two"),
    (build(facts=facts(thresholds=[1, 64])), "different powers of two"),
    (build(facts=facts(thresholds=[64, 2**70])), "does not describe a critic"),
    (build(facts=facts(thresholds=["64", "256"])), "does not describe a critic"),
    (build(facts=facts(thresholds=[256, 64])), r"found tiles \[256, 64\]"),
    (build(facts=facts(thresholds=[64, 131072])), r"found tiles \[64, 131072\]"),
    (build(facts=facts(players=["me"])), "does not describe a critic"),
    (build(facts=facts(split={})), "does not describe a critic"),
    (b"\0" * 64, "safetensors"),
    (b"PK\x03\x04" + b"\0" * 100, "header claims"),
    (b"", "found 0 bytes, expected a safetensors file"),
    (lzma.compress(b""), "found 0 bytes"),
]  # fmt: skip


def test_what_is_no_critic_is_refused(tmp_path: Path) -> None:
    assert NTupleCritic.load(written(tmp_path / "a", build()))(np.zeros(1, np.uint64)).tolist() == [
        [0.5, 0.5]
    ]
    for content, said in NO_CRITICS:
        refused(tmp_path / "a", content, FormatError, said)
    save_network(Network.empty(NetworkLayout.of(["0123"])), tmp_path / "network")
    with pytest.raises(ModelError, match="found the format 'tape2048 n-tuple network 1'") as caught:
        NTupleCritic.load(tmp_path / "network")
    assert "--kind ntuple" in (caught.value.hint or "")


def test_a_neural_critic_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best/critic.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(ModelError, match="found a PyTorch critic; expected an n-tuple critic") as caught:
        NTupleCritic.load(tmp_path / "best")
    assert caught.value.hint == "load it with tape2048.torch.TorchCritic"


def test_a_place_without_a_critic_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere", ".", "no/such/dir"):
        with pytest.raises(ModelError, match="no such file") as caught:
            NTupleCritic.load(name)
        assert "a shipped critic: default" in (caught.value.hint or "")


def test_a_shipped_name_works_in_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SHIPPED:
        (tmp_path / name).write_bytes(plain)
        assert critic_path(name).parent.name == "weights"
        assert critic_path(tmp_path / name) == tmp_path / name
