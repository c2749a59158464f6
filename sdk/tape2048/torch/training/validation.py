"""Validation of a model during training, for early stopping and the best critic.

Stages, intervals and baselines are part of `tape2048 critic eval`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tape2048.critic.metrics import ranking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.torch.loader import CriticLoader
    from tape2048.torch.training.ranks import Ranks


class Validation(NamedTuple):
    """The result of a validation."""

    # Mean cross-entropy over thresholds and rows, by the rows' weights, of calibrated logits.
    loss: float
    auroc: dict[str, float | None]  # by threshold; None where all labels are equal
    rows: int
    bad_batch: int | None = None  # this rank's first batch with a logit that is not finite; None without one


@torch.no_grad()
def validate(
    logits_of: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    loader: CriticLoader,
    tiles: Sequence[int],
    shift: torch.Tensor,
    ranks: Ranks,
) -> Validation:
    """Evaluate the validation part; each rank evaluates its share, and gets the complete result.

    Args:
        logits_of: the model, in evaluation mode.
        loader: of the part; its epoch 0 is used, so that a cap draws the same rows each time.
        tiles: the T thresholds.
        shift: of the logits by ``pos_weight``, ``[T]``.
        ranks: of the training.
    """
    loader.set_epoch(0)
    logits, labels, weights = [], [], []
    bad_batch = None
    for index, batch in enumerate(loader):
        logits.append(logits_of(batch).float().cpu())
        if bad_batch is None and not bool(logits[-1].isfinite().all()):
            bad_batch = index
        labels.append(batch["labels"].cpu().clone())  # cloned: the loader overwrites its memory
        weights.append(batch["weight"].cpu().clone())
    all_logits = torch.cat(ranks.gather(torch.cat(logits))) - shift
    all_labels = torch.cat(ranks.gather(torch.cat(labels)))
    all_weights = torch.cat(ranks.gather(torch.cat(weights)))
    # In float64, so that the order of the sum does not matter.
    share = (all_weights.double() / all_weights.double().mean())[:, None]
    loss = binary_cross_entropy_with_logits(all_logits.double(), all_labels.double(), share)
    scores, truth, counts = all_logits.numpy(), all_labels.numpy() > 0.5, all_weights.numpy()
    found = {str(tile): auroc(scores[:, i], truth[:, i], counts) for i, tile in enumerate(tiles)}
    return Validation(float(loss), found, len(all_logits), bad_batch)


def auroc(scores: NDArray[Any], labels: NDArray[np.bool_], weights: NDArray[np.float32]) -> float | None:
    """Compute the AUROC of weighted scores ``f32[N]``; None where all labels are equal, or a score is NaN."""
    if np.isnan(scores).any():
        return None
    kinds, kind = np.unique(weights, return_inverse=True)
    found = ranking(scores, labels, kind, kinds[:, None]).auroc[0]
    return None if np.isnan(found) else float(found)
