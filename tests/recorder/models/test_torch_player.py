"""PyTorch models as players: all kinds of files, and games that do not depend on lanes."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tape2048.errors import ConfigError, PlayerError
from tape2048.game.rules import boards_to_exps, legal_masks
from tape2048_recorder.models.torch_player import TorchPlayer, make

from ..lanes.tables import play
from . import nets

MODULE = f"{Path(nets.__file__)}:policy"


@pytest.fixture(scope="module")
def net() -> nets.Policy:
    torch.manual_seed(1)
    return nets.policy()


@pytest.fixture(scope="module")
def files(net: nets.Policy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The same model, saved in each way; what :func:`make` is called with."""
    root = tmp_path_factory.mktemp("models")
    tokens = torch.zeros((8, 16), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(net, tokens), root / "p.pt")
    torch.export.save(torch.export.export(net, (tokens,)), root / "p.pt2")
    save_file(net.state_dict(), root / "p.safetensors")
    return {
        "script": {"model": str(root / "p.pt")},
        "export": {"model": str(root / "p.pt2")},
        "weights": {"model": str(root / "p.safetensors"), "module": MODULE, "width": 32},
    }


BOARDS = np.random.default_rng(0).integers(0, 2**64, 21, dtype=np.uint64)


@pytest.mark.parametrize("kind", ["script", "export", "weights"])
def test_every_kind_of_file_gives_the_same_scores(
    net: nets.Policy, files: dict[str, dict[str, Any]], kind: str
) -> None:
    player = make(**files[kind], device="cpu", batch=8)
    player.warm_up(21)
    exps = boards_to_exps(BOARDS)
    scores = player(BOARDS, legal_masks(BOARDS), exps)
    assert scores.dtype == np.float32
    with torch.inference_mode():
        expected = net(torch.from_numpy(exps.astype(np.int64))).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_fixed_batches_make_games_independent_of_lanes(files: dict[str, dict[str, Any]]) -> None:
    def player() -> TorchPlayer:
        return make(**files["weights"], device="cpu", batch=16)

    alone = play(player(), 12, lanes=1)
    assert play(player(), 12, lanes=64) == alone
    sampled = {"method": "softmax", "temperature": 0.3}
    assert play(player(), 6, lanes=3, **sampled) == play(player(), 6, lanes=64, **sampled)


def test_scores_that_depend_on_the_place_are_reported() -> None:
    class Placed(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.arange(len(tokens) * 4, dtype=torch.float32).reshape(-1, 4)

    with pytest.warns(UserWarning, match="depend on its place"):
        TorchPlayer(Placed(), batch=4).warm_up(2)


def test_what_the_weights_are_is_in_the_hash(files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    save_file(nets.policy().state_dict(), tmp_path / "p.safetensors")
    first = make(**files["weights"], device="cpu").sha256
    assert make(**files["weights"], device="cpu").sha256 == first
    assert (
        make(**{**files["weights"], "model": str(tmp_path / "p.safetensors")}, device="cpu").sha256 != first
    )
    assert make(**files["weights"], device="cpu", batch=8).sha256 != first


@pytest.mark.parametrize("kind", ["script", "export", "weights"])
@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_half_a_checkpoint_is_refused_by_name(
    files: dict[str, dict[str, Any]], tmp_path: Path, kind: str, keep: float
) -> None:
    whole = Path(files[kind]["model"])
    data = whole.read_bytes()
    half = tmp_path / whole.name
    half.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(PlayerError, match="cannot be loaded") as caught:
        make(**{**files[kind], "model": str(half)}, device="cpu")
    assert caught.value.path == str(half)


def test_a_missing_file_is_no_unfinished_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match="No such file") as caught:
        make(model=str(tmp_path / "none.pt"), device="cpu")
    assert "rename" not in str(caught.value.hint)


def test_weights_of_another_shape_are_refused(files: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(PlayerError, match="size mismatch"):
        make(**{**files["weights"], "width": 31}, device="cpu")


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"module": ""}, "without module"),
        ({"module": MODULE.replace("policy", "no_module"), "width": None}, "expected a torch.nn.Module"),
        ({"dtype": "int3"}, "int3"),
        ({"batch": -1}, "-1"),
        ({"device": "mps"}, "'mps', expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:"}, "'cuda:', expected"),
        pytest.param({"device": "cuda"}, "torch finds no CUDA", marks=NO_GPU),
        pytest.param({"device": "cuda:1"}, "torch finds no CUDA", marks=NO_GPU),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    files: dict[str, dict[str, Any]], change: dict[str, Any], says: str
) -> None:
    changed = {**files["weights"], "device": "cpu", **change}
    args = {key: value for key, value in changed.items() if value is not None}
    with pytest.raises(ConfigError, match=says):
        make(**args)


def test_a_model_of_three_scores_is_refused() -> None:
    with pytest.raises(PlayerError, match=r"\(4, 3\).*expected a tensor \(4, 4\)"):
        TorchPlayer(nets.three(), batch=4).warm_up(4)
