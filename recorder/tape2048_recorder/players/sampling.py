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

import difflib
from typing import TYPE_CHECKING, Annotated

import msgspec

from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Indexed by their numbers in the kernel.
METHODS = ("argmax", "softmax", "top_k", "top_p")

Step = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[sampling]`` table."""

    method: str = "argmax"  # one of METHODS
    temperature: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0  # divisor of scores before the softmax
    top_k: Annotated[int, msgspec.Meta(ge=1, le=4)] = 2  # number of moves that top_k keeps
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9  # least probability that top_p keeps
    start_gate: Step = 0  # first step of a game with the method; argmax before
    stop_gate: Step = 0  # first step without it; 0: none
    epsilon: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # probability of a random legal move
    epsilon_start_gate: Step = 0  # first step with epsilon
    epsilon_stop_gate: Step = 0  # first step without it; 0: none

    @property
    def needs_scores(self) -> bool:
        """Whether the method draws from scores, so that a player must not answer with moves."""
        return self.method != "argmax"


def read_sampling(table: Mapping[str, object]) -> Sampling:
    """Read a ``[sampling]`` table, with defaults.

    Raises:
        ConfigError: an unknown setting; the message names the nearest.
        ConfigError: an invalid value, or gates that leave no step.
    """
    known = Sampling.__struct_fields__
    for key in table:
        if key not in known:
            (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0)
            raise ConfigError(
                f"sampling: found {key!r}, which is not one of its settings; the nearest is {nearest!r}",
                hint=f"its settings: {', '.join(known)}",
            )
    try:
        sampling = msgspec.convert(dict(table), Sampling)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"sampling: {error}", hint="tape2048_recorder.players.sampling has the table"
        ) from error
    if sampling.method not in METHODS:
        raise ConfigError(
            f"sampling: found method = {sampling.method!r}, expected one of {', '.join(METHODS)}"
        )
    for prefix in ("", "epsilon_"):
        start, stop = getattr(sampling, f"{prefix}start_gate"), getattr(sampling, f"{prefix}stop_gate")
        if stop and stop <= start:
            raise ConfigError(
                f"sampling: found {prefix}start_gate = {start}, {prefix}stop_gate = {stop}, "
                "expected a stop above the start (or 0: to the end of the game)"
            )
    return sampling
