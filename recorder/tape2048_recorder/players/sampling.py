"""Settings for sampling moves from the scores of a batched player. Does not load the compiler.

::

    [sampling]
    method = "softmax"  # argmax, softmax, top_k, top_p
    temperature = 0.5
    start_gate = 0  # the method applies to steps start_gate <= step < stop_gate of a game
    stop_gate = 30  # ... and argmax to the others; 0: to the end
    epsilon = 0.01  # the probability of a uniformly random legal move, within its own gates
    epsilon_start_gate = 0
    epsilon_stop_gate = 0

``top_k`` keeps the k legal moves with the highest scores, and ``top_p`` the fewest whose probabilities sum to
p (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020); both then draw by softmax.
Of equal scores, the move with the lower number comes first. Every draw is from the game's own
generator: one for a method that draws, one more where epsilon applies (two where it replaces the move), none
for argmax. So the games do not depend on the number of lanes or workers, as long as the scores do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tape2048.errors import ConfigError
from tape2048.settings.fields import Settings, Share, about, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Indexed by their numbers in the kernel.
METHODS = ("argmax", "softmax", "top_k", "top_p")

Step = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Sampling(Settings, frozen=True, kw_only=True):
    """The ``[sampling]`` table."""

    method: Annotated[str, about("how a move is chosen", choices=METHODS)] = "argmax"
    temperature: Annotated[float, about("divisor of scores before the softmax", gt=0, le=1e9)] = 1.0
    top_k: Annotated[int, about("number of moves that top_k keeps", ge=1, le=4)] = 2
    top_p: Annotated[float, about("least probability that top_p keeps", gt=0, le=1)] = 0.9
    start_gate: Annotated[Step, about("first step of a game with the method; argmax before")] = 0
    stop_gate: Annotated[Step, about("first step without it; 0: none")] = 0
    epsilon: Annotated[Share, about("probability of a random legal move")] = 0.0
    epsilon_start_gate: Annotated[Step, about("first step with epsilon")] = 0
    epsilon_stop_gate: Annotated[Step, about("first step without it; 0: none")] = 0

    @property
    def needs_scores(self) -> bool:
        """Whether the method draws from scores, so that a player must not answer with moves."""
        return self.method != "argmax"

    def check(self) -> None:
        """Raise ConfigError for gates that leave no step."""
        for prefix in ("", "epsilon_"):
            start, stop = getattr(self, f"{prefix}start_gate"), getattr(self, f"{prefix}stop_gate")
            if stop and stop <= start:
                raise ConfigError(
                    f"sampling: found {prefix}start_gate = {start}, {prefix}stop_gate = {stop}, "
                    "expected a stop above the start (or 0: to the end of the game)"
                )


def read_sampling(table: Mapping[str, object]) -> Sampling:
    """Read a ``[sampling]`` table; ConfigError for an unknown setting, an invalid value, or no step."""
    return read_table(Sampling, dict(table), "sampling")
