"""Heads of critics: from a tower's vectors to the logits of tiles.

A new kind of head is a form of :class:`CriticHead`. Each of its arguments is a field of :class:`HeadInfo`,
which ``critic.json`` contains, and a setting of :class:`tape2048.critic.config.CriticConfig`.
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

#: Bound of a prior's logits: a threshold that no game reached has no finite one.
_PRIOR_LOGIT_MAX = 12.0

_Count = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class HeadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of :class:`CriticHead`, except the thresholds."""

    in_dim: _Count
    hidden: _Count | None = None
    dropout: float = 0.0
    ordered: bool = False


class CriticHead(nn.Module):
    """Logits of P(game reaches T) for each threshold T.

    A linear probe, or ``LayerNorm -> Linear -> GELU -> Dropout -> Linear``.

    With ``ordered``, P(>= T) cannot increase with T for any input. Each logit after the first is the previous
    logit minus ``softplus`` of an output. This is the cumulative link of ordinal regression (McCullagh 1980),
    with gaps that depend on the input.

    Args:
        in_dim: D, width of the vectors.
        thresholds: T tiles, different powers of two; ascending if ``ordered``.
        hidden: width of the hidden layer; None for a linear probe.
        dropout: share of hidden activations dropped in training, 0 <= dropout < 1.
        ordered: see above.

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
            raise ValueError(f"thresholds {tuple(tiles)}; expected ascending ones where ordered")
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
        """Return logits ``f32[B, T]`` of vectors ``[B, D]`` of any floating type, which is cast here."""
        with torch.autocast(x.device.type, enabled=False):
            raw: torch.Tensor = self.last(self.body(x.float()))
            if not self.ordered:
                return raw
            return torch.cat((raw[:, :1], raw[:, :1] - softplus(raw[:, 1:]).cumsum(dim=1)), dim=1)

    @property
    def info(self) -> HeadInfo:
        """Its arguments."""
        return HeadInfo(in_dim=self.in_dim, hidden=self.hidden, dropout=self.dropout, ordered=self.ordered)

    @torch.no_grad()
    def set_prior(self, shares: Sequence[float]) -> None:
        """Start from the T shares of true labels, each in [0, 1], as every row's probabilities.

        Weights of the last layer become 0. Training then does not start by learning the prevalence, and the
        probability of a threshold that no game reached stays near 0.
        """
        if len(shares) != len(self.thresholds) or not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"shares {list(shares)}; expected {len(self.thresholds)} from 0 to 1")
        found = torch.logit(torch.tensor(shares, dtype=torch.float64))
        logits = found.clamp(-_PRIOR_LOGIT_MAX, _PRIOR_LOGIT_MAX).tolist()
        self.last.weight.zero_()
        if self.ordered:
            falls = [max(a - b, 1e-3) for a, b in itertools.pairwise(logits)]
            logits = [logits[0], *(fall + math.log(-math.expm1(-fall)) for fall in falls)]
        self.last.bias.copy_(torch.tensor(logits))

    @torch.no_grad()
    def fold_pos_weight(self, weights: Sequence[float]) -> None:
        """Calibrate a head that was trained with ``pos_weight``.

        With weight w, the loss is minimal where ``sigmoid(z) = p w / (p w + 1 - p)``, so the logit of p is
        ``z - log w``: the bias gets this shift.

        The ordered form has no bias for each threshold, and weights may demand logits that rise with the
        threshold. Train it on ``logits + log w`` instead. Then there is nothing to fold.

        Args:
            weights: w > 0 of each threshold.

        Raises:
            ValueError: the ordered form, or invalid weights.
        """
        if self.ordered:
            raise ValueError("the ordered form has nothing to fold: train it on logits + log(weights)")
        if len(weights) != len(self.thresholds) or not all(w > 0 and math.isfinite(w) for w in weights):
            raise ValueError(f"weights {list(weights)}; expected {len(self.thresholds)} positive numbers")
        shift = torch.tensor([math.log(w) for w in weights], dtype=torch.float64)
        self.last.bias.sub_(shift.to(self.last.bias))
