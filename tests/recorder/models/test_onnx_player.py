"""ONNX models as players."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tape2048.errors import ConfigError, PlayerError
from tape2048.game.rules import boards_to_exps, legal_masks
from tape2048_recorder.models.onnx_player import OnnxPlayer, make

from ..lanes.tables import play

WEIGHTS = np.random.default_rng(3).normal(size=(16, 4)).astype(np.float32)
BOARDS = np.random.default_rng(0).integers(0, 2**64, 21, dtype=np.uint64)


def save(
    path: Path,
    *,
    boards: int | str = "boards",
    weights: np.ndarray = WEIGHTS,
    kind: int = TensorProto.INT64,
    sums_up: bool = False,
) -> str:
    """A linear model over the exponents; ``sums_up``: over those of the boards before it, too."""
    nodes = [
        helper.make_node("Cast", ["tokens"], ["cells"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["cells", "weights"], ["scores"]),
    ]
    if sums_up:
        axis = numpy_helper.from_array(np.array(0), "axis")
        nodes[1].output[0] = "each"
        nodes += [
            helper.make_node("Constant", [], ["axis"], value=axis),
            helper.make_node("CumSum", ["each", "axis"], ["scores"]),
        ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("tokens", kind, [boards, 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [boards, weights.shape[1]])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize(("boards", "batch"), [("boards", 0), ("boards", 8), (8, 0), (8, 5)])
@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8])
def test_a_model_gives_its_scores(tmp_path: Path, boards: int | str, batch: int, kind: int) -> None:
    player = make(model=save(tmp_path / "p.onnx", boards=boards, kind=kind), batch=batch)
    player.warm_up(21)
    exps = boards_to_exps(BOARDS)
    scores = player(BOARDS, legal_masks(BOARDS), exps)
    np.testing.assert_allclose(scores, exps.astype(np.float32) @ WEIGHTS, rtol=1e-4, atol=1e-4)


def test_fixed_batches_make_games_independent_of_lanes(tmp_path: Path) -> None:
    path = save(tmp_path / "p.onnx")
    assert play(make(model=path, batch=16), 12, lanes=1) == play(make(model=path, batch=16), 12, lanes=64)


def test_external_data_is_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the player's identity."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    path = save(Path("models/p.onnx"))

    def player(weights: np.ndarray) -> OnnxPlayer:
        model = onnx.load(save(Path("models/p.onnx"), weights=weights))
        Path("models/weights.bin").unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        return make(model=path)

    one, other = player(WEIGHTS), player(2 * WEIGHTS)
    assert one.sha256 != other.sha256
    other.warm_up(21)
    exps = boards_to_exps(BOARDS)
    scores = other(BOARDS, legal_masks(BOARDS), exps)
    np.testing.assert_allclose(scores, exps.astype(np.float32) @ (2 * WEIGHTS), rtol=1e-4, atol=1e-4)
    Path("models/weights.bin").rename("weights.bin")
    with pytest.raises(PlayerError, match=r"weights\.bin"):
        make(model=path)


@pytest.mark.parametrize("keep", [0, 10, 100])
def test_half_a_model_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "p.onnx"
    save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PlayerError) as caught:
        make(model=str(path))
    assert caught.value.path == str(path)


def test_a_model_of_other_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match=r"tensor\(float\)"):
        make(model=save(tmp_path / "p.onnx", kind=TensorProto.FLOAT))


def test_a_model_of_three_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match=r"float32\[4, 3\]"):
        make(model=save(tmp_path / "p.onnx", weights=WEIGHTS[:, :3])).warm_up(4)


def test_what_the_model_is_is_in_the_hash(tmp_path: Path) -> None:
    first = make(model=save(tmp_path / "p.onnx")).sha256
    assert make(model=str(tmp_path / "p.onnx")).sha256 == first
    assert make(model=save(tmp_path / "q.onnx", weights=-WEIGHTS)).sha256 != first


@pytest.mark.parametrize(("boards", "batch"), [("boards", 8), (8, 0)])
def test_scores_that_depend_on_the_place_are_reported(tmp_path: Path, boards: int | str, batch: int) -> None:
    player = make(model=save(tmp_path / "p.onnx", boards=boards, sums_up=True), batch=batch)
    with pytest.warns(UserWarning, match="depend on its place in a batch of 8"):
        player.warm_up(21)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="there may be a GPU here"
)
def test_a_missing_gpu_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "p.onnx")
    with pytest.raises(ConfigError, match="uses CPUExecutionProvider"):
        make(model=path, device="cuda")
    assert make(model=path, device="auto").sha256 == make(model=path, device="cpu").sha256


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tpu"):
        make(model=save(tmp_path / "p.onnx"), device="tpu")
