"""The oracle: true probabilities of positions, estimated by rollouts that are kept on disk.

From each position, it plays N games to their ends, with the player of the recorded game. Rollouts are stored
while they are played, by player, first positions, N and seed. An interrupted oracle continues, a finished
oracle is read, and only positions without rollouts are played. The files are in ``tape2048/oracle`` below
``$XDG_CACHE_HOME`` or ``~/.cache``, beside the compiled kernels: safetensors with ``boards`` (``u64[n]``),
``counts`` (``u16[n, 16]``) and, in the table of text, the number of positions done.

**Metrics of predictions against rollouts.** A game's outcome is one draw from its position's true probability
q, and luck dominates every metric of outcomes. The share r of N rollouts that reach a tile is q with binomial
noise of known size, which can be subtracted:

===========  =====================================================================================
R2           explained variance of q: 1 - (mean (p - r)^2 - v) / (var r - v), where the noise is
             v = mean r (1 - r) / (N - 1). 1 for p = q, 0 for p = mean q
bias         mean p - mean r
Brier score  mean of (p - y)^2 over the outcomes y of all rollouts
log loss     mean of -log(probability of y) over them, with p kept 1e-6 away from 0 and 1
ECE          sum over bins of p of (share of the weight) |mean p - mean r|
===========  =====================================================================================

The noise is known on average only, so the ratio of a sample can exceed 1. No prediction explains more than
the whole variance: R2 and its interval end at 1, and the interval holds the truth as often as before. Where
the ratio itself exceeds 1, the lower end moves down by the excess, because luck must not shorten an interval.
Where the variance of q is small beside its own error (:data:`MEASURABLE`), as for a tile that nearly every
game reaches, the ratio says nothing, and R2 is None.

Means and variances are weighted, and intervals are by game, as for all metrics
(:mod:`tape2048.critic.metrics`). The calibration error is above 0 for calibrated predictions, too: positions
of one p differ in q, and a bin has finitely many of them. ``ece_noise`` is what it would be on average for
such predictions, of which p - r varies as much within the bins.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from tape2048.base.text import as_int
from tape2048.critic.metrics import (
    Estimate,
    ReliabilityBin,
    calibration_error,
    certain,
    cross_entropy,
    ratio,
    reliability,
    weighted,
)
from tape2048.errors import FormatError, StorageError
from tape2048.files.durable import replace_file
from tape2048.files.opening import storage_errors
from tape2048.files.reading import read_path
from tape2048.files.safetensors import decode, encode
from tape2048.jit.compiler import cache_base

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tape2048.critic.metrics import Bins, Floats, Integers


FORMAT = "tape2048 oracle 2"

#: Columns of the counts: the exponents of tiles, 0 to 15.
EXPONENTS = 16

#: Counts are ``u16``. The noise of one rollout is unknown.
ROLLOUTS_MIN, ROLLOUTS_MAX = 2, 65_535

#: Minimum number of seconds of play between two saves.
SAVE_S = 5.0

_NAMING = 64  # first positions, which determine a file's name: further positions are added to the same file

_REMOVE = "remove the file: its rollouts are then played again"


class Play(Protocol):
    """Function that plays rollouts of one player, N and seed, such as the recorder's ``play_rollouts``."""

    def __call__(
        self, boards: NDArray[np.uint64], /, *, first: int, progress: Callable[[int, int], object] | None
    ) -> NDArray[np.uint16]:
        """Return counts ``u16[n, 16]`` of positions ``u64[n]``, the first of which has the number ``first``.

        ``progress`` is called with the number of games done and of all.
        """


class Rollouts(NamedTuple):
    counts: NDArray[np.uint16]  # rollouts that reached at least exponent e, `u16[n, 16]`
    rollouts: int  # N, games from each position
    known: int  # positions whose rollouts were on disk

    def shares(self, tile: int) -> NDArray[np.float64]:
        exponent = tile.bit_length() - 1
        if exponent >= EXPONENTS:  # no board has it
            return np.zeros(len(self.counts))
        return np.asarray(self.counts[:, exponent] / self.rollouts)


class Oracle(msgspec.Struct, frozen=True):
    """Rollouts by one player, kept on disk.

    Attributes:
        play: function that plays rollouts.
        player_sha256: SHA-256 of the player.
        rollouts: N, games from each position, 2 to 65,535.
        seed: seed of the rollouts, 64 bits.
        directory: directory of the files; None: the directory that the module names.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from tape2048.critic import Oracle
        >>> def play(boards, *, first, progress):
        ...     return np.full((len(boards), 16), 24, np.uint16)
        >>> oracle = Oracle(play, player_sha256="0" * 64, rollouts=48, directory=Path("rollouts"))
        >>> oracle.ask(np.array([0x1100], np.uint64)).shares(2048)
        array([0.5])
    """

    play: Play
    player_sha256: str
    rollouts: int
    seed: int = 0
    directory: Path | None = None

    def __post_init__(self) -> None:
        if self.directory is not None:
            msgspec.structs.force_setattr(self, "directory", self.directory.absolute())

    def ask(
        self, boards: NDArray[np.uint64], *, progress: Callable[[int, int], object] | None = None
    ) -> Rollouts:
        """Play the rollouts of positions that are not on disk yet.

        Args:
            boards: positions before a move, ``u64[n]``, n >= 1.
            progress: function that is called with the number of games done and of all.

        Raises:
            ValueError: no positions, or a number of rollouts out of range.
            FormatError: the file of these rollouts is damaged.
            StorageError: the operating system could not write or read it.
        """
        if not ROLLOUTS_MIN <= as_int("rollouts", self.rollouts) <= ROLLOUTS_MAX:
            raise ValueError(f"rollouts={self.rollouts}; expected {ROLLOUTS_MIN} to {ROLLOUTS_MAX:,}")
        boards = np.ascontiguousarray(boards, "<u8")
        if len(boards) == 0:
            raise ValueError("no positions; expected at least one")
        texts = {
            "format": FORMAT,
            "player_sha256": self.player_sha256,
            "rollouts": str(self.rollouts),
            "seed": str(self.seed),
        }
        path, counts = _find(self.directory or _default_directory(), texts, boards)
        known, size, total = min(len(counts), len(boards)), 1, len(boards) * self.rollouts

        def save() -> None:
            padded = np.zeros((len(boards), EXPONENTS), "<u2")
            padded[: len(counts)] = counts
            arrays = {"boards": boards, "counts": padded}
            with storage_errors(path, "saving rollouts"):
                replace_file(path, b"".join(encode(arrays, {**texts, "positions": str(len(counts))})))

        def told(games: int, _: int) -> None:
            if progress is not None:
                progress(min(len(counts), len(boards)) * self.rollouts + games, total)

        if not path.exists():
            save()  # fails before any game is played if the file cannot be written
        told(0, 0)
        while len(counts) < len(boards):
            begin, first = time.monotonic(), len(counts)
            played = self.play(boards[first : first + size], first=first, progress=told)
            counts = np.concatenate([counts, played.astype("<u2")])
            save()
            if time.monotonic() - begin < SAVE_S:
                size *= 2
        return Rollouts(counts[: len(boards)], self.rollouts, known)


def _default_directory() -> Path:
    if (base := cache_base()) is None:
        raise StorageError(
            "found no directory for rollouts: there is neither a home nor XDG_CACHE_HOME",
            hint="set XDG_CACHE_HOME to a directory",
        )
    return base / "tape2048/oracle"


def _find(
    directory: Path, texts: dict[str, str], boards: NDArray[np.uint64]
) -> tuple[Path, NDArray[np.uint16]]:
    """Return the path of a sample's rollouts, and the counts in this file."""
    with storage_errors(directory, "making the directory of rollouts"):
        directory.mkdir(parents=True, exist_ok=True)
    for named in (boards[:_NAMING], boards):  # another sample can differ in later positions only
        digest = hashlib.sha256(msgspec.json.encode(texts) + named.tobytes()).hexdigest()
        path = directory / f"{digest[:32]}.safetensors"
        counts = _read(path, texts, boards) if path.exists() else np.empty((0, EXPONENTS), "<u2")
        if counts is not None:
            return path, counts
    raise FormatError(
        "does not match its name; expected rollouts of other positions", path=path, hint=_REMOVE
    )


def _read(path: Path, texts: dict[str, str], boards: NDArray[np.uint64]) -> NDArray[np.uint16] | None:
    """Return the counts in a file; None if it has other positions after the first ones."""
    try:
        arrays, found = decode(read_path(path).tobytes(), str(path))
    except FormatError as error:
        raise type(error)(error.message, path=path, offset=error.offset, hint=_REMOVE) from error
    done, known, counts = (
        found.pop("positions", ""),
        arrays.get("boards", boards),
        arrays.get("counts", boards),
    )
    found.pop("release", None)  # rollouts of other releases are valid
    both = min(len(known), len(boards))
    if (
        found != texts
        or not np.array_equal(known[:_NAMING][:both], boards[:_NAMING][:both])
        or (counts.dtype, counts.shape) != (np.dtype("<u2"), (len(known), EXPONENTS))
        or not (done.isascii() and done.isdecimal() and int(done) <= len(known))
    ):
        message = "does not match its name; expected rollouts of this player, seed and positions"
        raise FormatError(message, path=path, hint=_REMOVE)
    return counts[: int(done)].copy() if np.array_equal(known[:both], boards[:both]) else None


_VARIANCE_MIN = 1e-12  # a variance of q below this is rounding

#: R2 needs a variance of q that is this many times its standard error.
MEASURABLE = 3.0


class OracleScores(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one predictor against rollouts; see the module."""

    positions: int
    r2: Estimate | None  # explained variance of the true probability; None where it is not measurable
    note: str | None  # why there is no R2; None where there is one
    bias: Estimate  # mean prediction minus mean of the rollouts
    brier: Estimate
    log_loss: Estimate  # in nats
    ece: Estimate  # calibration error
    ece_noise: float  # mean calibration error of calibrated predictions on as many positions


def oracle_scores(
    probabilities: NDArray[Any], shares: NDArray[Any], rollouts: int, runs: Integers, weights: Floats
) -> OracleScores:
    """Measure predictions against rollouts.

    Args:
        probabilities: predictions ``[n]``. No NaN, n >= 1.
        shares: share of each position's rollouts that reached the tile, ``[n]``.
        rollouts: N, at least 2.
        runs: run of each position, ``[n]``, below R.
        weights: ``[R, W]``, not negative. The first weighting is the sample itself. See
            :class:`~tape2048.critic.metrics.RunBootstrap`.

    Raises:
        ValueError: shapes that do not match, no positions, too few rollouts, or a NaN.

    Example:
        >>> import numpy as np
        >>> from tape2048.critic import RunBootstrap, oracle_scores
        >>> rows = np.array([0.2, 0.5, 0.9]), np.array([0.25, 0.5, 1.0]), 48, np.arange(3)
        >>> found = oracle_scores(*rows, RunBootstrap(3, replicates=0).weights)
        >>> round(found.r2.value, 2), round(found.bias.value, 2)
        (0.99, -0.05)
    """
    if rollouts < ROLLOUTS_MIN or len(probabilities) == 0:
        raise ValueError(
            f"{rollouts} rollouts of {len(probabilities)} positions; expected at least {ROLLOUTS_MIN} and 1"
        )
    p, r = np.asarray(probabilities, np.float64), np.asarray(shares, np.float64)
    bins = reliability(p, r, runs, weights)  # checks all of them
    rows = np.ones_like(p), p, r, r * r, (p - r) ** 2, r * (1 - r), cross_entropy(p, r)
    total, *sums = weighted([np.bincount(runs, each, len(weights)) for each in rows], weights)
    mean_p, mean_r, mean_rr, error, spread, loss = (ratio(each, total) for each in sums)
    noise = spread / (rollouts - 1)
    r2, note = explained(error - noise, mean_rr - mean_r**2 - noise)
    return OracleScores(
        positions=len(p),
        r2=r2,
        note=note,
        bias=certain(mean_p - mean_r),
        brier=certain(error + spread),
        log_loss=certain(loss),
        ece=certain(calibration_error(bins)),
        ece_noise=_ece_noise(p - r, bins, runs, weights[:, 0]),
    )


def explained(
    errors: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[Estimate | None, str | None]:
    """Return R2, or why it cannot be measured, from mean squared errors and variances of each weighting.

    No prediction explains more than the whole variance, so R2 and its interval end at 1. If noise lifts the
    value above 1, the lower end moves down by the excess, so that luck does not make the interval shorter.
    """
    variance, drawn = variances[0], variances[1:][~np.isnan(variances[1:])]
    error = drawn.std() if len(drawn) else 0.0
    if not variance > max(_VARIANCE_MIN, MEASURABLE * error):
        within = f" ± {1.96 * error:.2g}" if len(drawn) else ""
        return None, f"the true probability varies too little: its variance is {variance:.2g}{within}"
    raw = certain(1 - errors / np.where(variances > 0, variances, np.nan))
    value = min(raw.value, 1.0)
    if raw.low is None or raw.high is None:
        return Estimate(value), None
    low, high = (
        raw.low - (raw.value - value),
        max(raw.high, value),
    )  # for a constant prediction, all replicates are above the value
    return Estimate(value, min(low, value), min(high, 1.0)), None


def _ece_noise(gaps: NDArray[np.float64], bins: Bins, runs: Integers, weights: Floats) -> float:
    """Return the calibration error if mean gaps were normal around 0, with a run's positions as one."""
    bin_of, own = bins.bin_of, weights[runs].astype(np.float64)
    total = np.bincount(bin_of, own)
    means = ratio(np.bincount(bin_of, own * gaps), total)
    cells = np.bincount(
        np.asarray(runs, np.int64) * len(total) + bin_of,
        own * (gaps - means[bin_of]),
        len(weights) * len(total),
    )
    errors = np.sqrt((cells.reshape(len(weights), -1) ** 2).sum(axis=0))
    return float(np.sqrt(2 / np.pi) * errors.sum() / total.sum())


class Means(msgspec.Struct, frozen=True):
    """Mean labels, rollouts and predictions over equal positions; a capped sample needs weights."""

    labels: Estimate  # share of positions whose own game reached the tile
    rollouts: Estimate  # mean share of the rollouts that reached it
    critic: Estimate  # mean probability


class TruthCurve(msgspec.Struct, frozen=True):
    threshold: int
    equal: Means  # each position counts once
    weighted: Means  # each counts for the rows that it represents
    bins: list[ReliabilityBin]
    points: list[tuple[float, float]]  # probability and share of rollouts of some positions


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    player_sha256: str
    positions: int  # a uniform part of the sample
    rollouts: int  # games from each position
    known: int  # positions whose rollouts were on disk
    precision: float | None  # the requested distance of R2 from the ends of its interval
    seed: int  # of the rollouts
    curves: list[TruthCurve]  # by threshold
