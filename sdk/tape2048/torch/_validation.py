"""How well a model does on the validation part, for early stopping and the best checkpoint.

Not an evaluation: no stages, no intervals, no baselines. Those are `tape2048 critic eval`'s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.torch._ranks import Ranks
    from tape2048.torch.loader import CriticLoader

__all__ = ["Validation", "auroc", "validate"]


class Validation(NamedTuple):
    """What was found.

    Attributes:
        loss: mean cross-entropy of all rows and thresholds, of calibrated logits, without weights.
        auroc: by threshold; None where all labels are the same.
        rows: how many.
        bad_batch: the first batch of this rank with a logit that is not finite; None where all are.
    """

    loss: float
    auroc: dict[str, float | None]
    rows: int
    bad_batch: int | None = None


@torch.no_grad()
def validate(
    logits_of: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    loader: CriticLoader,
    tiles: Sequence[int],
    shift: torch.Tensor,
    ranks: Ranks,
) -> Validation:
    """Go through the validation part once; every rank has its share, and gets the whole answer.

    Args:
        logits_of: the model, in evaluation mode.
        loader: of the part, from its epoch 0, so that a cap draws the same rows each time.
        tiles: the T thresholds.
        shift: what ``pos_weight`` added to the logits, ``[T]``.
        ranks: who takes part.
    """
    loader.set_epoch(0)
    logits, labels = [], []
    bad_batch = None
    for index, batch in enumerate(loader):
        logits.append(logits_of(batch).float().cpu())
        if bad_batch is None and not bool(logits[-1].isfinite().all()):
            bad_batch = index
        labels.append(batch["labels"].cpu().clone())  # cloned: the loader uses its memory again
    all_logits = torch.cat(ranks.gather(torch.cat(logits))) - shift
    all_labels = torch.cat(ranks.gather(torch.cat(labels)))
    # In float64, so that the order of the sum does not show.
    loss = binary_cross_entropy_with_logits(all_logits.double(), all_labels.double())
    scores, truth = all_logits.numpy(), all_labels.numpy() > 0.5
    found = {str(tile): auroc(scores[:, i], truth[:, i]) for i, tile in enumerate(tiles)}
    return Validation(float(loss), found, len(all_logits), bad_batch)


def auroc(scores: NDArray[Any], labels: NDArray[np.bool_]) -> float | None:
    """The share of (true, false) pairs in which the true one scores higher; ties count half.

    By ranks (Mann and Whitney 1947): ``(sum of the true ones' ranks - P (P + 1) / 2) / (P N)``. None where
    all labels are the same.
    """
    true = int(labels.sum())
    false = len(labels) - true
    if not true or not false:
        return None
    values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    if math.isnan(values[-1]):
        return None
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2  # of equal scores, counted from 1
    return float((mean_rank[inverse][labels].sum() - true * (true + 1) / 2) / (true * false))
