"""The example ``imitate.py``: it learns from a recording, and its model plays."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import reference

from tape2048 import Corpus
from tape2048_recorder.models.torch_player import make
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run

from ..checks import Listener
from ..lanes.tables import play

EXAMPLE = Path(__file__).parents[3] / "examples/imitate.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("imitate", EXAMPLE)
    imitate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imitate)
    return imitate


def test_it_sees_the_boards_that_the_moves_lead_to() -> None:
    boards = np.random.default_rng(1).choice(np.arange(16), (200, 16), p=[0.4, *15 * [0.04]])
    boards[0] = 15  # two of these make a 65536
    seen = example().policy().afterstates(torch.from_numpy(boards)).tolist()
    assert seen == [[reference.seen_slide(board, move)[0] for move in range(4)] for board in boards.tolist()]


def test_it_learns_to_move_as_a_teacher_and_plays(tmp_path: Path) -> None:
    imitate = example()
    run(
        RecorderConfig(
            player="greedy", out_dir=str(tmp_path / "teacher"), max_games=300, workers=1, min_free_mb=0,
            record_action=True, seed=1,
        ),
        Listener(),
    )  # fmt: skip
    out = tmp_path / "policy.safetensors"
    corpus = Corpus.open(tmp_path / "teacher")
    torch.manual_seed(0)
    small = {"width": 2, "hidden": 16}
    net = imitate.policy(**small)
    before = imitate.train(net, corpus, out, batches=1, batch_size=256, steps=400, rate=1e-2, seed=0)
    after = imitate.train(net, corpus, out, batches=60, batch_size=256, steps=400, rate=1e-2, seed=0)
    assert after > before + 0.05, "60 batches taught it nothing"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [out.name]
    player = make(model=str(out), module=f"{EXAMPLE}:policy", device="cpu", **small)
    assert len(play(player, 2, lanes=2)) == 2


def test_a_corpus_that_is_not_there_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["imitate.py", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="none: no such file or directory"):
        example().main()
