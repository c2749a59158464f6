"""What a training does where its validation has no loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tape2048 import Corpus, errors

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048.session import Session  # noqa: E402 - after the skip
from tape2048.torch.embedding import embed_session  # noqa: E402
from tape2048.torch.tower import Tower, TowerConfig, open_tower, save_tower  # noqa: E402
from tape2048.torch.training import train_critic  # noqa: E402

from .critics import config, make_games  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_numbers_that_are_none_are_found_in_validation_too(tmp_path: Path) -> None:
    """A loss that is NaN is neither the best one nor ever beaten: nothing would tell later critics apart."""
    root = make_games(tmp_path / "selfplay", sessions=1)
    torch.manual_seed(0)
    save_tower(tmp_path / "tower", Tower(TowerConfig(dim=8, layers=1, heads=2, ffn=8)))
    embed_session(Session.open(next(root.iterdir())), open_tower(tmp_path / "tower"))
    val = Corpus.open(root).split(train=0.8, val=0.2)["val"]
    run = val.runs[-1]
    values = np.load(next(root.iterdir()) / "embeddings.bf16.npy", mmap_mode="r+")
    values[int(run["first_row"]) + 5, 3] = 0x7FC0
    values.flush()
    row = int(val.row_starts[len(val.runs) - 1]) + 5
    made = config(root, tmp_path / "probe", use_embeddings=True, per_run=None, eval_steps=3, steps_max=6)
    said = rf"at step 3 the validation loss is nan.*of row {row} \(run {run['id']} of .* is not finite"
    with pytest.raises(errors.DivergedError, match=said):
        train_critic(made)
    assert not (tmp_path / "probe/best").exists()
    values[int(run["first_row"]) + 5, 3] = 0
    values.flush()
    assert train_critic(made).ended == "all steps are made"
