"""Heads of critics: modules that map a tower's vectors to the logits of thresholds.

Each argument of :class:`CriticHead` is a field of :class:`HeadInfo`, which is stored in ``critic.json``, and
a setting of :class:`tape2048.critic.critic_config.CriticConfig`.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Annotated

import msgspec
import torch
from torch import nn
from torch.nn.functional import softplus

from tape2048.session.run_table import check_thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bound for the logits of a prior: the logit of a threshold that no game reached is not finite.
_PRIOR_LOGIT_MAX = 12.0

_Count = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class HeadInfo(msgspec.Struct, frozen=True, kw_only=True):
    in_dim: _Count
    hidden: _Count | None = None
    dropout: float = 0.0
    ordered: bool = False


class CriticHead(nn.Module):
    """A module that maps vectors to the logit of P(the game reaches T) for each threshold T.

    It is a linear probe, or ``LayerNorm -> Linear -> GELU -> Dropout -> Linear``.

    With ``ordered``, the probability never increases with T. Each logit after the first is the previous logit
    minus ``softplus`` of an output. This is the cumulative link of ordinal regression (McCullagh 1980), with
    gaps that depend on the input.

    Args:
        in_dim: width of the vectors, D.
        thresholds: tiles, different powers of two; ascending if ``ordered``.
        hidden: width of the hidden layer; None for a linear probe.
        dropout: share of hidden activations dropped in training, 0 <= dropout < 1.
        ordered: whether probabilities must not increase with the threshold.

    Raises:
        ValueError: an invalid argument.

    Example:
        >>> import torch
        >>> from tape2048.torch import CriticHead
        >>> CriticHead(8, (8192, 16384))(torch.zeros(5, 8)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_dim: int,
        thresholds: Sequence[int],
        hidden: int | None = None,
        dropout: float = 0.0,
        *,
        ordered: bool = False,
    ) -> None:
        super().__init__()
        tiles = check_thresholds(thresholds).tolist()
        if in_dim < 1 or (hidden is not None and hidden < 1):
            raise ValueError(f"in_dim={in_dim}, hidden={hidden}; expected at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}; expected at least 0 and below 1")
        if ordered and tiles != sorted(tiles):
            raise ValueError(f"thresholds {tuple(tiles)}; expected ascending thresholds with ordered=True")
        self.in_dim = in_dim
        self.thresholds: tuple[int, ...] = tuple(tiles)
        self.hidden = hidden
        self.dropout = dropout
        self.ordered = ordered
        self.last = nn.Linear(in_dim if hidden is None else hidden, len(tiles))
        self.body: nn.Module = nn.Identity()
        if hidden is not None:
            self.body = nn.Sequential(
                nn.LayerNorm(in_dim), nn.Linear(in_dim, hidden), nn.GELU(), nn.Dropout(dropout)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, ``f32[B, T]``, of vectors ``[B, D]`` of any floating type."""
        with torch.autocast(x.device.type, enabled=False):
            raw: torch.Tensor = self.last(self.body(x.float()))
            if not self.ordered:
                return raw
            return torch.cat((raw[:, :1], raw[:, :1] - softplus(raw[:, 1:]).cumsum(dim=1)), dim=1)

    @property
    def info(self) -> HeadInfo:
        """The arguments of this head."""
        return HeadInfo(in_dim=self.in_dim, hidden=self.hidden, dropout=self.dropout, ordered=self.ordered)

    @torch.no_grad()
    def set_prior(self, shares: Sequence[float]) -> None:
        """Set the last layer so that every row's probabilities are these T shares, each in [0, 1].

        Pass the shares of true labels before training. Training then does not start by learning them, and the
        probability of a threshold that no game reached stays near 0. Weights of the last layer become 0.
        """
        if len(shares) != len(self.thresholds) or not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"shares {list(shares)}; expected {len(self.thresholds)} numbers from 0 to 1")
        found = torch.logit(torch.tensor(shares, dtype=torch.float64))
        logits = found.clamp(-_PRIOR_LOGIT_MAX, _PRIOR_LOGIT_MAX).tolist()
        self.last.weight.zero_()
        if self.ordered:
            falls = [max(a - b, 1e-3) for a, b in itertools.pairwise(logits)]
            logits = [logits[0], *(fall + math.log(-math.expm1(-fall)) for fall in falls)]
        self.last.bias.copy_(torch.tensor(logits))

    @torch.no_grad()
    def fold_pos_weight(self, weights: Sequence[float]) -> None:
        """Correct the probabilities of a head that was trained with ``pos_weight``.

        With weight w, the loss is minimal at ``sigmoid(z) = p w / (p w + 1 - p)``, so the logit of p is
        ``z - log w``. This method subtracts ``log w`` from the bias.

        An ordered head has no bias for each threshold. Train it on ``logits + log w`` instead: it then needs
        no correction.

        Args:
            weights: weight of each threshold, above 0.

        Raises:
            ValueError: the head is ordered, or the weights are invalid.
        """
        if self.ordered:
            raise ValueError("an ordered head cannot be corrected: train it on logits + log(weights)")
        if len(weights) != len(self.thresholds) or not all(w > 0 and math.isfinite(w) for w in weights):
            raise ValueError(f"weights {list(weights)}; expected {len(self.thresholds)} positive numbers")
        shift = torch.tensor([math.log(w) for w in weights], dtype=torch.float64)
        self.last.bias.sub_(shift.to(self.last.bias))
