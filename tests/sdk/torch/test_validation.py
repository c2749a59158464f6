"""What a validation measures, against slow definitions; what a training does where it has no loss."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tape2048 import Corpus, errors
from tape2048.session.session import Session
from tape2048.torch import CriticLoader
from tape2048.torch.embedding import embed_session
from tape2048.torch.tower import Tower, TowerConfig, open_tower
from tape2048.torch.training import auroc, train_critic, validate

from ..critics import TILES, config, forget_checksum, make_games, make_uneven, save_tower


def test_nan_in_validation_ends_the_training(tmp_path: Path) -> None:
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
    forget_checksum(next(root.iterdir()))
    row = int(val.row_starts[len(val.runs) - 1]) + 5
    made = config(root, tmp_path / "probe", use_embeddings=True, per_run=None, eval_steps=3, steps_max=6)
    said = rf"at step 3, the validation loss is nan.*of row {row} \(run {run['run_id']} of .* is not finite"
    with pytest.raises(errors.TrainingError, match=said):
        train_critic(made)
    assert not (tmp_path / "probe/best").exists()
    values[int(run["first_row"]) + 5, 3] = 0
    values.flush()
    assert train_critic(made).ended == "all steps are made"


def by_pairs(scores: Any, labels: Any) -> float | None:
    true, false = scores[labels], scores[~labels]
    if not len(true) or not len(false):
        return None
    wins = (true[:, None] > false).sum() + (true[:, None] == false).sum() / 2
    return float(wins / (len(true) * len(false)))


def test_no_number_has_no_rank() -> None:
    once = np.ones(3, np.float32)
    assert auroc(np.array([0.0, np.nan, 1.0]), np.array([True, False, False]), once) is None
    assert auroc(np.arange(3.0), np.zeros(3, np.bool_), once) is None, "nor has one kind alone"


def test_a_validation_is_that_of_all_rows_once(tmp_path: Path) -> None:
    corpus = Corpus.open(make_games(tmp_path / "selfplay", sessions=1))
    tiles, shift = (4096, 8192), torch.tensor([0.5, -1.0])
    fields = ("tokens", "labels", "weight")
    loader = CriticLoader(corpus, 700, thresholds=tiles, fields=fields, label_dtype="float32", threads=0)
    next(iter(loader))  # wherever it was
    bad = 2

    def logits_of(batch: dict[str, Any]) -> Any:
        exponents = batch["tokens"].float()
        found = torch.stack([exponents[:, 0] - 4, exponents[:, 5] * exponents[:, 7] / 9 - 3], dim=1)
        if len(seen) >= bad:
            found[3, 1] = np.inf
        seen.append(len(batch["tokens"]))
        return found

    ranks: Any = SimpleNamespace(gather=lambda tensor: [tensor])
    seen: list[int] = [-1] * (bad + 100)
    assert validate(logits_of, loader, tiles, shift, ranks).bad_batch == 0
    seen = []
    assert validate(logits_of, loader, tiles, shift, ranks).bad_batch == bad
    bad, seen = 10**9, []
    found = validate(logits_of, loader, tiles, shift, ranks)
    assert (found.rows, sum(seen), found.bad_batch) == (len(corpus), len(corpus), None)
    assert loader.epoch == 1, "of a cap the rows of epoch 0 each time"
    rows = corpus.fetch(slice(None), ("tokens", "labels"), thresholds=tiles)
    logits = (logits_of({"tokens": torch.from_numpy(rows["tokens"])}) - shift).numpy().astype(np.float64)
    losses = np.logaddexp(0, logits) - logits * rows["labels"]
    assert found.loss == pytest.approx(losses.mean())
    share = rows["labels"].mean(axis=0)
    assert found.base_loss == pytest.approx(-(share * np.log(share) + (1 - share) * np.log(1 - share)).mean())
    assert found.auroc == pytest.approx(
        {str(tile): by_pairs(logits[:, i], rows["labels"][:, i]) for i, tile in enumerate(tiles)}
    )


@pytest.mark.parametrize("per_run", [7, 11, 19])
def test_the_base_rate_of_a_tile_that_all_games_reach_is_0(tmp_path: Path, per_run: int) -> None:
    """The weighted mean of labels that are all true can be a little above 1."""
    source = Corpus.open(make_uneven(tmp_path / "selfplay")).capped(per_run)
    fields = ("tokens", "labels", "weight")
    loader = CriticLoader(source, 500, thresholds=(2, 4, 8), fields=fields, label_dtype="float32")
    ranks: Any = SimpleNamespace(gather=lambda tensor: [tensor])
    found = validate(lambda batch: batch["tokens"][:, :3] / 4 - 1, loader, (2, 4, 8), torch.zeros(3), ranks)
    assert found.base_loss == pytest.approx(0, abs=1e-5)
    assert set(found.auroc.values()) == {None}


def test_validation_weights_capped_rows(tmp_path: Path) -> None:
    """All rows of a game are alike here, so that a validation of twelve of each is that of all rows."""
    corpus = Corpus.open(make_uneven(tmp_path / "selfplay"))
    ranks: Any = SimpleNamespace(gather=lambda tensor: [tensor])

    def logits_of(batch: dict[str, Any]) -> Any:
        return batch["tokens"][:, :3].float() / 4 - 1

    found, every = (
        validate(
            logits_of,
            CriticLoader(
                source, 500, thresholds=TILES, fields=("tokens", "labels", "weight"), label_dtype="float32"
            ),
            TILES,
            torch.zeros(3),
            ranks,
        )
        for source in (corpus.capped(12), corpus)
    )
    assert found.rows < every.rows / 4
    assert found.loss == pytest.approx(every.loss, rel=1e-6)
    assert found.base_loss == pytest.approx(every.base_loss, rel=1e-6)
    assert found.auroc == pytest.approx(every.auroc, abs=1e-9)
    assert all(value is not None for value in found.auroc.values())
