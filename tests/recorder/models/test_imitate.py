"""The example learns from a recording, and what it saves plays."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048 import Corpus
from tape2048_recorder.config import RecorderConfig
from tape2048_recorder.models.torch_player import make
from tape2048_recorder.recorder import run

from ..checks import Listener
from ..lanes.tables import play

if TYPE_CHECKING:
    import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/imitate.py"


def test_it_learns_to_move_as_a_teacher_and_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("imitate", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    imitate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imitate)
    run(
        RecorderConfig(
            player="greedy", out_dir=str(tmp_path / "teacher"), max_games=300, workers=1, min_free_mb=0,
            record_action=True, seed=1,
        ),
        Listener(),
    )  # fmt: skip
    out = tmp_path / "policy.safetensors"
    corpus = Corpus.open(tmp_path / "teacher")
    before = imitate.train(corpus, out, minutes=60, batch_size=256, rate=2e-3, seed=0, steps_max=1)
    after = imitate.train(corpus, out, minutes=60, batch_size=256, rate=1e-2, seed=0, steps_max=400)
    assert after > before + 0.02, "400 batches taught it nothing"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [out.name]
    player = make(model=str(out), module=f"{EXAMPLE}:policy", device="cpu")
    assert len(play(player, 4)) == 4
