"""How moves are drawn from the scores of a batched player."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tape2048.base.settings import Settings, Share, about, read_table
from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The kernel uses the indices of this tuple.
METHODS = ("argmax", "softmax", "top_k", "top_p")

Step = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Sampling(Settings, frozen=True, kw_only=True):
    """The ``[sampling]`` table: how moves are drawn from the scores of a batched player.

    ::

        [sampling]
        method = "softmax"  # argmax, softmax, top_k, top_p
        temperature = 0.5
        start_gate = 0  # use the method for steps start_gate <= step < stop_gate of a game
        stop_gate = 30  # and argmax for the other steps; 0: to the end of the game
        epsilon = 0.01  # probability of a uniformly random legal move, between its gates
        epsilon_start_gate = 0
        epsilon_stop_gate = 0

    ``top_k`` keeps the k legal moves with the highest scores. ``top_p`` keeps the fewest moves whose
    probabilities sum to p (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020). Both
    then draw by softmax. Of moves with equal scores, the move with the lower number comes first.

    All random numbers are from the game's generator. A method other than argmax draws one per move. Epsilon
    draws one more, or two if it replaces the move. The games do not depend on the number of lanes or workers
    if the scores do not.
    """

    method: Annotated[str, about("how a move is chosen from the scores", choices=METHODS)] = "argmax"
    temperature: Annotated[float, about("divisor of scores before the softmax", gt=0, le=1e9)] = 1.0
    top_k: Annotated[int, about("number of moves that top_k keeps", ge=1, le=4)] = 2
    top_p: Annotated[float, about("least sum of the probabilities that top_p keeps", gt=0, le=1)] = 0.9
    start_gate: Annotated[Step, about("first step of a game that uses the method; argmax before it")] = 0
    stop_gate: Annotated[Step, about("first later step that uses argmax again; 0: none")] = 0
    epsilon: Annotated[Share, about("probability of a random legal move")] = 0.0
    epsilon_start_gate: Annotated[Step, about("first step of a game that uses epsilon")] = 0
    epsilon_stop_gate: Annotated[Step, about("first later step without epsilon; 0: none")] = 0

    @property
    def needs_scores(self) -> bool:
        """Whether the method draws from scores, so that a player must return scores, not moves."""
        return self.method != "argmax"

    def check(self) -> None:
        """Raise ConfigError for gates that exclude every step."""
        for prefix in ("", "epsilon_"):
            start, stop = getattr(self, f"{prefix}start_gate"), getattr(self, f"{prefix}stop_gate")
            if stop and stop <= start:
                raise ConfigError(
                    f"sampling: found {prefix}start_gate = {start}, {prefix}stop_gate = {stop}; "
                    f"expected a {prefix}stop_gate above {prefix}start_gate, or 0 for the end of the game"
                )


def read_sampling(table: Mapping[str, object]) -> Sampling:
    """Read a ``[sampling]`` table; ConfigError for an unknown setting or an invalid value."""
    return read_table(Sampling, dict(table), "sampling")
