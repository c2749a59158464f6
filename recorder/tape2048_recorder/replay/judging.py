r"""Loss and luck of a game's moves, defined in one way for the viewer, the terminal, reports and columns.

Loss and luck are in points of score, or in the probability of reaching a tile.

A judge values boards before a move. :math:`V_0(b)` is the best reward plus value over an n-tuple network's
moves (:mod:`tape2048_recorder.players.ntuple`), or a critic's probability of reaching a tile. One spawn
further ahead, moves and boards have the values

.. math::

    q(b, a) = r(b, a) + \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e\, V_0(b_{c,e}), \qquad
    V(b) = \max_a q(b, a)

with :math:`p_1 = 0.9`, :math:`p_2 = 0.1`. The reward :math:`r` counts only for points. If the network has a
calibration (:mod:`tape2048.ntuple.calibration`), :math:`V_0` is the score that comes in the games of its
player, by the network's value. Otherwise, it is the network's value, and the judge is **uncalibrated**. A
board without moves has the value 0. A board with the tile has the probability 1. With ``ahead=2``,
:math:`V_0` is the value :math:`V` of a judge that looks one spawn ahead. All legal moves of all boards are
searched to the same depth, because a difference between two depths would count as a loss.

The move :math:`a_t` with the reward :math:`r_t` and its spawn have

.. math::

    loss_t &= V(b_t) - q(b_t, a_t) \ge 0 \\
    luck_t &= r_t + V_0(b_{t+1}) - q(b_t, a_t) \\
    error_t &= V(b_{t+1}) - V_0(b_{t+1})

A calibrated judge takes the best move from the network's values. The values of the other moves are lower by
the real part of the network's differences, measured on positions that were played on
(:mod:`tape2048_recorder.evaluation.calibrating`). In the formula of the luck, :math:`q` is the mean without
this correction.

Luck is the value after the spawn minus its expectation over the spawns, both by :math:`V_0`. For any
:math:`V_0`, its mean over the spawns of a move is 0, and so is its mean over games. The error is the change
of a board's value when the judge looks ahead from it. It is 0 for a judge whose values are the true means of
the scores. The sums telescope:

.. math::

    \sum_t r_t = V(b_0) - V(b_n) + \sum_t (luck_t - loss_t + error_t)

With :math:`V(b_n) = 0` for a game that ended, the score is the expectation at the start, plus luck, minus
loss, plus the judge's error.

Networks value boards with very high tiles as boards of smaller tiles
(:func:`tape2048_recorder.players.ntuple.downgraded`). A board, its moves and their spawns then have the
values of the smaller board. If two successive boards are replaced differently, the difference is part of the
error.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.intervals import wilson
from tape2048.base.resources import available_cores
from tape2048.base.settings import Settings, about, read_table
from tape2048.base.text import counted, json_bytes
from tape2048.errors import ConfigError, TapeError
from tape2048.game.boards import check_moves
from tape2048.game.moves import UNKNOWN
from tape2048.game.rules import (
    WON,
    as_packed,
    boards_to_exps,
    empty_mask,
    exps_to_boards,
    legal_mask,
    legal_masks,
    max_exponent,
    merge_score,
    slide,
    wins,
)
from tape2048.game.spawning import spawn_between
from tape2048.jit.compiler import kernel
from tape2048.ntuple.calibrated_network import find_calibration
from tape2048.ntuple.lookup import downgraded
from tape2048.ntuple.mapped import check_tables
from tape2048.ntuple.outcomes import UNCALIBRATED, look_up, outcomes, phase_at, reach_falls, tile_sum
from tape2048.players import player_name, player_text, plies_of
from tape2048.search_depth import ALWAYS, look_of
from tape2048.session.layout import START_BOARDS
from tape2048_recorder.game.rng import game_seeds, start_boards
from tape2048_recorder.players.ntuple import best_answers, move_values
from tape2048_recorder.players.options import check_player, make_player, player_sha256
from tape2048_recorder.players.parameters import OF_NETWORK, NTupleArgs, with_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.ntuple.calibration import Calibration
    from tape2048.players import PlayedBy
    from tape2048_recorder.players.ntuple import NTuple

    Leaf = Callable[[NDArray[np.uint64]], NDArray[np.floating[Any]]]

U64 = np.uint64

_P_TWO, _P_FOUR = 0.9, 0.1

_PIECE_BOARDS = 1024  # boards that a thread values at a time; each leads to about 50 boards
_CHILDREN_MAX = 30  # most boards to which a move can lead: a 2 or a 4 in 15 cells
_STARTS = 64  # number of first boards, whose mean value is the judge's expectation of a game
#: Standard deviation of a player's scores divided by their mean: 0.4 to 0.6.
_SPREAD = 0.6
#: Score of a network that searches one spawn ahead, divided by the score that it expects: 1.46 for two
#: shipped networks.
_DEEPER_SCORES = 1.5

#: The least cost of each grade, by the judge's unit, the worst grade first. The cost of a move is the greater
#: of its loss as a share of the score to come, and the fall of the probability of the next tile. If a critic
#: judges, it is the loss.
GRADES = {
    "points": {"blunder": 0.1, "mistake": 0.03, "inaccuracy": 0.01},
    "probability": {"blunder": 0.1, "mistake": 0.05, "inaccuracy": 0.01},
}
#: The grades by number: 0 is none.
GRADE_NAMES = ("", "inaccuracy", "mistake", "blunder")
#: The name of a session's own judge, which :meth:`Judge.of_recorded` returns.
OWN_JUDGE = "own"
_OWN_MAX = 4  # most judges of recorded players in memory: a network takes up to 100 MB

#: The names of a game's sums.
SUMS = ("loss", "luck", "mistakes", "blunders")


class JudgedMoves(NamedTuple):
    """n judged moves. Numbers of unknown moves are NaN, and so is ``reach`` of an uncalibrated judge."""

    values: npt.NDArray[np.float32]  # f32[n, 4], of up, down, left and right; NaN for illegal moves
    reach: npt.NDArray[np.float32]  # f32[n, 4], probabilities of the next tile after each move
    network_values: npt.NDArray[np.float32]  # f32[n, 4], before calibration
    loss: npt.NDArray[np.float32]  # f32[n], at least 0
    spread: npt.NDArray[np.float32]  # f32[n], standard error of the loss
    luck: npt.NDArray[np.float32]  # f32[n], of the spawn after the move
    grade: npt.NDArray[np.uint8]  # u8[n], the index in GRADE_NAMES
    rewards: npt.NDArray[np.float64]  # f64[n], points of the moves, 0 if unknown


class Losses(NamedTuple):
    """Losses of n moves; the unit is points, or the probability of a tile if a critic judges.

    Attributes:
        loss: ``f32[n]``, the value of the best move minus the value of the move, at least 0.
        standard_error: ``f32[n]``, of the loss; 0 for an uncalibrated judge.
        grade: ``u8[n]``, 0 none, 1 inaccuracy, 2 mistake, 3 blunder (:data:`GRADE_NAMES`); 0 for an
            uncalibrated judge.
        best: ``u8[n]``, the best move.
        reach_before: ``f32[n]``, the probability that the game reaches its next highest tile, with the best
            move; NaN for a critic or an uncalibrated judge.
        reach_after: ``f32[n]``, the same with the move.
    """

    loss: npt.NDArray[np.float32]
    standard_error: npt.NDArray[np.float32]
    grade: npt.NDArray[np.uint8]
    best: npt.NDArray[np.uint8]
    reach_before: npt.NDArray[np.float32]
    reach_after: npt.NDArray[np.float32]


def unknown_moves(count: int) -> JudgedMoves:
    """Return moves that are not judged."""
    values, numbers = np.full((count, 4), np.nan, np.float32), np.full(count, np.nan, np.float32)
    grade, rewards = np.zeros(count, np.uint8), np.zeros(count)
    return JudgedMoves(values, values, values, numbers, numbers, numbers, grade, rewards)


class Judged(NamedTuple):
    """A judged game of n moves; most fields are those of :class:`JudgedMoves`."""

    values: npt.NDArray[np.float32]
    reach: npt.NDArray[np.float32]
    state: npt.NDArray[
        np.float64
    ]  # f64[n + 1], the best value of each board; the outcome without legal moves
    loss: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]
    luck: npt.NDArray[np.float32]
    grade: npt.NDArray[np.uint8]
    error: npt.NDArray[np.float64]  # f64[n], the judge's error
    unit: str = "points"  # or "probability"

    @property
    def sums(self) -> dict[str, float]:
        found = summands(self.loss, self.luck, self.grade)
        return {name: float(each.sum()) for name, each in found.items()}


def summands(
    loss: NDArray[np.float32], luck: NDArray[np.float32], grade: NDArray[np.uint8]
) -> dict[str, NDArray[np.float64]]:
    """Return each move's contribution to its game's sums; NaN adds 0, and a blunder is no mistake."""
    found = np.nan_to_num(loss), np.nan_to_num(luck), grade == 2, grade == 3
    return {name: each.astype(np.float64) for name, each in zip(SUMS, found, strict=True)}


class JudgeArgs(Settings, frozen=True):
    """Parameters of a judge. Other parameters of the player do not apply: all moves are searched alike."""

    weights: Annotated[str, about("a shipped network, or a network's file")] = "strong"
    downgrade: Annotated[int, about("the player's `downgrade`")] = OF_NETWORK
    ahead: Annotated[int, about("spawns to search ahead", ge=1, le=2)] = 1


def check_judge(name: str, args: Mapping[str, Any]) -> JudgeArgs:
    """Return the parameters of a judge such as ``ntuple:weights=fast,ahead=2``, split into name and args."""
    if name == OWN_JUDGE:
        if args:
            raise ConfigError(
                f"found the judge {OWN_JUDGE} with parameters, expected {OWN_JUDGE} without parameters",
                hint="Pass ntuple:KEY=VALUE,... instead.",
            )
        return JudgeArgs()
    if name != "ntuple":
        check_player(name, {})
        raise ConfigError(
            f"found the judge {name!r}, expected ntuple",
            hint="Pass ntuple:weights=NETWORK, or judge by a critic.",
        )
    if searched := args.keys() & (set(NTupleArgs.__struct_fields__) - set(JudgeArgs.__struct_fields__)):
        raise ConfigError(
            f"found the judge's parameter {min(searched)!r}, expected weights, downgrade or ahead: a judge "
            "searches all moves to the same depth",
            hint="Pass weights=NETWORK for a 2-ply search, and also ahead=2 for a 3-ply search.",
        )
    judge = read_table(JudgeArgs, dict(args), "judge ntuple")
    NTupleArgs(weights=judge.weights, downgrade=judge.downgrade).check()
    return judge


def leaf_player(judge: JudgeArgs) -> NTuple:
    """Return the player that values boards for a judge: 1-ply, or 2-ply if it searches two spawns ahead."""
    depth: dict[str, float] = {"look": ALWAYS, "look_margin": 0.0} if judge.ahead > 1 else {"look": 0}
    args = check_player("ntuple", {"weights": judge.weights, "downgrade": judge.downgrade, **depth})
    player: NTuple = make_player("ntuple", args)
    return player


class Spawn(NamedTuple):
    cell: int  # 0 (top left) to 15
    tile: int  # 2 or 4
    probability: float  # of this cell and tile
    board: int  # the board with the spawn, packed
    value: float  # of that board


class Option(NamedTuple):
    move: int  # 0 up, 1 down, 2 left, 3 right
    value: float  # as in Judged.values
    reward: int  # its merge score
    afterstate: int  # the board after the move and before the spawn, packed
    spawns: tuple[Spawn, ...]  # all possible spawns, by cell, the 2 before the 4
    reach: float  # probability of the next tile; NaN for an uncalibrated judge
    spread: float  # standard error of the difference to the best value
    mean: float  # mean value after the spawns, from which a spawn's luck counts


class Judge:
    """Values of boards and moves, by a player's network (:meth:`of_player`) or a critic (:meth:`of_critic`).

    ``text`` makes the judge again; it is empty for a critic. ``unit`` is ``"points"`` or ``"probability"``
    (of ``tile``). Judges with equal ``identity`` give equal values.
    """

    def __init__(
        self,
        name: str,
        leaf: Leaf,
        identity: str,
        *,
        tile: int | None = None,
        downgrade_exponent: int = 0,
        threads: int = 1,
        text: str = "",
        weights: str = "",
        named: str = "",
        ahead: int = 1,
        players: Sequence[PlayedBy] = (),
        calibration: Calibration | None = None,
    ) -> None:
        self.name, self.identity, self.tile = name, identity, tile
        self.calibration = calibration
        self._table = UNCALIBRATED if calibration is None else calibration.table
        self._learned_from = {one.sha256 for one in players if one.sha256}
        self.text, self.weights, self.ahead = text, weights, ahead
        self._named = named  # the weights by name and digest, as sessions record them
        self.unit = "points" if tile is None else "probability"
        self._leaf, self.threads = leaf, threads
        self._downgrade_exponent = U64(downgrade_exponent)

    @classmethod
    def of_player(
        cls, name: str = "ntuple", args: Mapping[str, Any] | None = None, plays: str | None = None
    ) -> Self:
        """Return the judge by an n-tuple network.

        Args:
            name: ``"ntuple"``.
            args: as for :func:`check_judge`.
            plays: SHA-256 of the player that continues the games. The judge is uncalibrated
                if the network's file has none for it. None: the first calibration of the file.
        """
        judge = check_judge(name, args or {})
        player = leaf_player(judge)

        def leaf(boards: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
            if judge.ahead == 1:
                found = best_answers(player, boards)
            else:
                found = np.nan_to_num(best_of(move_values(player, boards)), copy=False)
            check_tables()  # never show or store values of a damaged table
            return found

        values_of = player_sha256(name, player)
        calibration = find_calibration(judge.weights, values_of, plays)
        normal = JudgeArgs()
        others = {key: getattr(judge, key) for key in ("downgrade", "ahead")}
        given = {key: value for key, value in others.items() if value != getattr(normal, key)}
        named = with_digests(name, {"weights": judge.weights})
        text = player_text({"player": name, "player_args": {**named, **given}})
        identity = (
            f"judge 2 {values_of}" if calibration is None else f"judge 3 {values_of} {calibration.sha256}"
        )
        uncalibrated = ", uncalibrated" if calibration is None else ""
        return cls(
            f"{text.removesuffix(f',ahead={judge.ahead}')}, {judge.ahead + 1}-ply{uncalibrated}",
            leaf,
            hashlib.sha256(identity.encode()).hexdigest(),
            downgrade_exponent=int(player.downgrade_exponent),
            threads=available_cores(),
            text=text,
            weights=judge.weights,
            named=named["weights"],
            ahead=judge.ahead,
            calibration=calibration,
        )

    @classmethod
    def of_network(cls, weights: str = "strong", *, ahead: int = 1) -> Self:
        """Return the judge by a network.

        Args:
            weights: a shipped network (``strong``, ``small``, ``fast``), or a network's file.
            ahead: 1 for a 2-ply search, 2 for a 3-ply search.

        Raises:
            ConfigError: there is no such network, or ``ahead`` is neither 1 nor 2.

        Example:
            >>> Judge.of_network("fast").unit
            'points'
        """
        return cls.of_player("ntuple", {"weights": weights, "ahead": ahead})

    @classmethod
    def of_recorded(cls, facts: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return the judge of a session's games: its player's network, 2-ply or 3-ply.

        The judge searches 3-ply if the player always searches 2-ply, or sometimes deeper. Otherwise it
        searches 2-ply. Players without a network are judged by the default network. So are players whose
        network cannot be read, and a message gives the reason.
        """
        args = facts.get("player_args") if facts.get("player") in {"ntuple", "critic"} else None
        if not isinstance(args, dict):
            return cls.of_player(plays=str(facts.get("player_sha256"))), None
        always = any(phase.below[0] == ALWAYS for phase in look_of(facts["player"], args))
        deep = facts["player"] == "ntuple" and (always or plies_of("ntuple", args) > 2)
        network = {key: args[key] for key in ("weights", "downgrade") if key in args}
        try:
            plays = str(facts.get("player_sha256"))
            return cls.of_player("ntuple", {**network, "ahead": 1 + deep}, plays), None
        except (TapeError, OSError) as error:
            return cls.of_player(), f"The default network judges, since the player's cannot be read: {error}."

    @functools.cached_property
    def expected(self) -> float:
        """The score, or the probability of the tile, that the judge expects of a new game."""
        starts = start_boards(game_seeds(0, np.arange(_STARTS, dtype=np.uint64)))
        return float(best_of(self.judged(self._values(starts), starts)[0]).mean(dtype=np.float64))

    def weakness(self, facts: Mapping[str, Any], runs: NDArray[np.void] | None = None) -> str | None:
        """Return a warning if the judge is, or may be, weaker than a player; None otherwise.

        A judge by the player's own network is weaker if it looks fewer spawns ahead. A judge by another
        network is weaker if the player's mean score is above 1.5 times the score that the judge expects,
        about that network's score one ply deeper. A critic is weaker than a player outside its training that
        reaches the tile more often than it expects. The warning says so if the games are too few to decide.
        """
        runs = None if START_BOARDS in facts else runs  # only games from new boards are comparable
        args, known = facts.get("player_args"), 0 if runs is None else len(runs)
        own = {self.weights, self._named}
        if self.tile is None and isinstance(args, dict) and args.get("weights") in own:
            if (plies := plies_of("ntuple", args)) <= self.ahead + 1:
                return None
            reason = (
                f"the player searches up to {plies}-ply with the same network, and it {self.ahead + 1}-ply"
            )
            return self._warning(facts, "is", reason, "are not")
        if self.tile is not None and facts.get("player_sha256") in self._learned_from:
            return None
        if self.tile is None:
            factor = _DEEPER_SCORES if self.calibration is None else 1.0
            limit = factor * self.expected
            mean = 0.0 if runs is None or not known else float(runs["score"].mean())
            spread = 2 * _SPREAD * mean / math.sqrt(max(known, 1))
            low, high = mean - spread, mean + spread
            times = f"{factor:g} times " if factor != 1 else ""
            more = f"{times}the {self.expected:,.0f} points that it expects"
            does = f"scores more than {more}"
        else:
            limit = self.expected
            reached = 0 if runs is None else int((runs["highest_tile"] >= self.tile).sum())
            _, low, high = wilson(reached, known)
            does = f"reaches {self.tile} in more than the {limit:.1%} of games that it expects"
        if not known or low <= limit < high:
            reason = f"{counted(known, 'known game')} cannot tell whether the player {does}"
            return self._warning(facts, "may be", reason, "may not be")
        return None if low <= limit else self._warning(facts, "is", f"the player {does}", "are not")

    def _warning(self, facts: Mapping[str, Any], verb: str, reason: str, are: str) -> str:
        weaker = f"The judge {self.name} {verb} weaker than {player_name(facts)}"
        return f"{weaker}: {reason}. Its losses {are} the player's mistakes."

    @classmethod
    def of_critic(
        cls,
        critic: Callable[[NDArray[np.uint64]], NDArray[np.float32]],
        tile: int,
        *,
        thresholds: Sequence[int],
        sha256: str,
        name: str = "critic",
        players: Sequence[PlayedBy] = (),
    ) -> Self:
        """Return the judge by a critic's probability of a tile; the critic learned from ``players``."""
        if tile not in thresholds:
            raise ConfigError(
                f"found tile {tile}, expected a tile of the critic: {', '.join(map(str, thresholds))}",
                hint=f"Choose, for example, {thresholds[-1]}.",
            )
        column, exponent = list(thresholds).index(tile), tile.bit_length() - 1

        def leaf(boards: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
            reached = (boards_to_exps(boards).max(axis=1, initial=0) >= exponent) | (boards == WON)
            decided = reached | (legal_masks(boards) == 0)
            return np.where(decided, reached.astype(np.float32), critic(boards)[:, column])

        identity = hashlib.sha256(f"judge 2 {sha256} {tile}".encode())
        return cls(f"{name}, P({tile})", leaf, identity.hexdigest(), tile=tile, players=players)

    def calibrated(self, calibration: Calibration) -> Self:
        """Return this judge with a calibration."""
        judge = copy.copy(self)
        judge.__dict__ |= {"calibration": calibration, "_table": calibration.table}
        return judge

    def outcomes(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the mean score that comes, and the probability of the next highest tile, of boards.

        They hold for games of the player that the judge's calibration assumes.

        Args:
            boards: packed boards before a move, ``u64[n]``.

        Returns:
            ``f32[2, n]``: the scores in points, then the probabilities.

        Raises:
            ConfigError: the judge is uncalibrated.

        Example:
            >>> scores, reach = Judge.of_network("fast").outcomes(np.array([0x010002103421A987], np.uint64))
            >>> float(reach[0]) > 0.9
            True
        """
        if self.calibration is None:
            raise ConfigError(
                f"found {self.name}, expected a calibrated judge",
                hint="Calibrate its network with games of the player: tape2048 player calibrate --help",
            )
        return outcomes(self._table, boards, self._leaf(self._seen(boards)))

    def moves(
        self, boards: NDArray[np.uint64], moves: NDArray[np.uint8], following: NDArray[np.uint64]
    ) -> JudgedMoves:
        """Judge single moves, each by the boards before and after it.

        Moves above 3 and ``following`` 0 are unknown.
        """
        known_values = self._values(boards)
        raw, _, network, _ = known_values
        seen, at = self._seen(boards), (np.arange(len(moves)), moves & 3)
        chosen = np.where(moves < 4, raw[at], np.nan).astype(np.float64)
        values, reach, spread = self.judged(known_values, boards)
        loss = np.where(moves < 4, best_of(values) - values[at], np.nan).astype(np.float32)
        spread = np.where(moves < 4, spread[at], np.nan).astype(np.float32)
        after, known = np.empty(len(moves), np.uint64), np.empty(len(moves), np.bool_)
        rewards, seen_rewards = np.empty((2, len(moves)))
        _follow((boards, seen), moves, following, (after, known, rewards, seen_rewards))
        leaves = self._leaf(after)
        if self.calibration is not None:
            leaves, seen_rewards = outcomes(self._table, following, leaves)[0], rewards
        gained = seen_rewards if self.tile is None else 0.0
        luck = np.where(known, gained + leaves - chosen, np.nan).astype(np.float32)
        luck[known & (following == WON)] = 0.0  # no tile was spawned
        fall = np.where(moves < 4, best_of(reach) - reach[at], np.nan)
        grade = self._grades(values, loss, spread, fall)
        return JudgedMoves(values, reach, network, loss, spread, luck, grade, rewards)

    def losses(self, boards: ArrayLike, moves: ArrayLike) -> Losses:
        """Return what each move costs. The negative loss is a dense reward for a program that learns to play.

        Args:
            boards: the boards before the moves: packed ``u64[n]``, or exponents ``u8[n, 16]`` or
                ``u8[n, 4, 4]``.
            moves: ``[n]``, 0 up, 1 down, 2 left, 3 right.

        Returns:
            Losses, grades and probabilities, each ``[n]``. The points are those of the player that the
            judge's calibration assumes.

        Raises:
            ValueError: a move is illegal (the error names its number, the move and the board), or lengths or
                types do not match.

        Example:
            >>> judge = Judge.of_network("fast")
            >>> found = judge.losses([0x010002103421A987] * 2, [2, 0])  # left, up
            >>> found.best.tolist(), found.grade.tolist()
            ([2, 2], [0, 2])
        """
        given = np.asarray(boards) if isinstance(boards, np.ndarray) else as_packed(boards)
        exps = given.dtype == np.uint8 and given.ndim > 1
        packed = exps_to_boards(given.reshape(len(given), -1)) if exps else as_packed(given)
        made = np.asarray(moves, None if np.size(moves) else np.uint8)
        if packed.ndim != 1 or packed.shape != made.shape:
            shapes = f"boards have shape {given.shape} and moves {made.shape}"
            raise ValueError(f"{shapes}; expected u64[n] or u8[n, 16], and [n]")
        check_moves(packed, made)
        found = self.moves(packed, made.astype(np.uint8), np.zeros_like(packed))
        reach_after = found.reach[np.arange(len(made)), made]
        best = _first_best(found.network_values).astype(np.uint8)
        return Losses(found.loss, found.spread, found.grade, best, best_of(found.reach), reach_after)

    def _grades(
        self, values: NDArray[np.float32], loss: NDArray[np.float32], spread: NDArray[np.float32], fall: Any
    ) -> NDArray[np.uint8]:
        if self.tile is not None:
            cost = np.nan_to_num(loss)
        elif self.calibration is None:
            return np.zeros(len(loss), np.uint8)
        else:
            cost = np.fmax(loss / np.maximum(best_of(values), 1), fall)
            cost = np.where(loss > spread, np.nan_to_num(cost), 0)
        return np.searchsorted(sorted(GRADES[self.unit].values()), cost, "right").astype(np.uint8)

    def judged(
        self, found: NDArray[np.float32], boards: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return values, probabilities of the next tile, and errors of the losses, all ``f32[n, 4]``.

        ``found`` is from :meth:`_values`. The network's values choose the best move: by the means of
        outcomes, which differ little between moves, a player is far weaker. The values of the other moves are
        lower by the real part of the network's differences.
        """
        outcome, reach, network, ends = found
        if self.calibration is None:
            return network, reach, np.zeros_like(network)
        best = (np.arange(len(boards)), _first_best(network))
        highest = boards_to_exps(boards).max(axis=1, initial=0)
        kept, spread = self.calibration.real_differences(highest, network[best][:, None] - network)
        # A spawn that leaves no move certainly costs everything that would have come.
        certain = (ends - ends[best][:, None]) * outcome[best][:, None]
        kept = np.minimum(np.fmax(kept, certain), outcome[best][:, None])
        values = outcome[best][:, None] - kept
        falls = reach_falls(self._table, boards, outcome[best], kept)
        return values, np.maximum(reach[best][:, None] - falls, 0), spread

    def values_of(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the values of moves, ``f32[n, 4]``; NaN for illegal moves."""
        return self.judged(self._values(boards), boards)[0]

    def network_values(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the values of moves by the network, ``f32[n, 4]``; NaN for illegal moves."""
        network: NDArray[np.float32] = self._values(boards)[2]
        return network

    def board_values(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the values of boards unsearched, ``f32[n]``: the score that comes, or network points."""
        leaves = np.asarray(self._leaf(self._seen(boards)), np.float32)
        return leaves if self.calibration is None else outcomes(self._table, boards, leaves)[0]

    def game(self, boards: ArrayLike, moves: ArrayLike, found: JudgedMoves | None = None) -> Judged:
        """Judge a game by its boards, ``u64[n + 1]``, and moves, ``u8[n]``, or complete ``found``."""
        states, made = np.ascontiguousarray(as_packed(boards)), np.asarray(moves)
        if len(states) != len(made) + 1:
            raise ValueError(f"found {len(states)} boards and {len(made)} moves, expected one more board")
        made = np.where((made < 0) | (made > 3), UNKNOWN, made).astype(np.uint8)
        found = self.moves(states[:-1], made, states[1:]) if found is None else found
        last = self.judged(self._values(states[-1:]), states[-1:])[0]
        state = np.append(best_of(found.values), best_of(last)).astype(np.float64)
        ended = legal_masks(states) == 0
        state[ended] = self._leaf(states[ended])
        gained = found.rewards if self.tile is None else 0.0
        error = gained + state[1:] - state[:-1] - found.luck + found.loss
        return Judged(
            found.values,
            found.reach,
            state,
            found.loss,
            found.spread,
            found.luck,
            found.grade,
            error,
            self.unit,
        )

    def board(self, board: int) -> list[Option]:
        """Return the legal moves of a packed board, each with its value and its possible spawns."""
        packed = np.array([board], np.uint64)
        counts, children = _children(self._seen(packed))
        shown = _children(packed)[1]
        own = np.asarray(self._leaf(children), np.float32)
        leaves = (own if self.calibration is None else outcomes(self._table, shown, own)[0]).tolist()
        known = self._values(packed)
        (values,), (reach,), (spreads,) = (each.tolist() for each in self.judged(known, packed))
        found, first = [], 0
        for move in range(4):
            if not (count := int(counts[0, move])):
                continue
            won = wins(packed[0], move)
            after = int(WON if won else slide(packed[0], move))
            reward, spawns = int(merge_score(packed[0], move)), []
            for i in range(first, first if won else first + count):
                spawned = int(shown[i]) ^ after
                cell = 15 - (spawned.bit_length() - 1) // 4
                tile = 1 << (spawned >> (60 - 4 * cell))
                chance = (_P_TWO if tile == 2 else _P_FOUR) / (count // 2)
                spawns.append(Spawn(cell, tile, chance, int(shown[i]), leaves[i]))
            first += count
            more = reach[move], spreads[move], float(known[0, 0, move])
            found.append(Option(move, values[move], reward, after, tuple(sorted(spawns)), *more))
        return found

    def _seen(self, boards: NDArray[np.uint64]) -> NDArray[np.uint64]:
        seen = boards.copy()
        if self._downgrade_exponent:
            downgrade_boards(seen, self._downgrade_exponent)
        return seen

    def _values(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return values, probabilities of the next tile, network values, and probabilities of the end."""
        found = np.empty((4, len(boards), 4), np.float32)

        def fill(first: int) -> None:
            part = slice(first, first + _PIECE_BOARDS)
            seen = self._seen(boards[part])
            counts, children = _children(seen)
            leaves = np.asarray(self._leaf(children), np.float32)
            out = found[:, part]
            _expect((boards[part], seen), counts, children, leaves, self.tile is None, self._table, out)

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(fill, range(0, len(boards), _PIECE_BOARDS)))
        return found


def own_judges() -> Callable[[Mapping[str, Any]], tuple[Judge, str | None]]:
    @functools.lru_cache(_OWN_MAX)
    def made(facts: bytes) -> tuple[Judge, str | None]:
        return Judge.of_recorded(msgspec.json.decode(facts))

    names = "player", "player_args", "player_sha256"
    return lambda facts: made(json_bytes({name: facts.get(name) for name in names}))


def best_of(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the highest of each board's values, ``f32[n]``; NaN without a value. Faster than a reduction."""
    best: NDArray[np.float32] = np.fmax(*np.fmax(values.T[::2], values.T[1::2]))
    return best


def _first_best(values: NDArray[np.float32]) -> NDArray[np.int64]:
    best: NDArray[np.int64] = np.argmax(np.nan_to_num(values, nan=-np.inf), axis=1)
    return best


def _children(boards: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    counts = np.empty((len(boards), 4), np.int64)
    children = np.empty(len(boards) * 4 * _CHILDREN_MAX, np.uint64)
    return counts, children[: _fill_children(boards, counts, children)]


@kernel
def _fill_children(boards: Any, counts: Any, children: Any) -> int:
    """Write the boards after each move and spawn (a 2 and a 4 per empty cell, from the last cell on)."""
    at = 0
    for i in range(boards.shape[0]):
        for move in range(4):
            first = at
            after = slide(boards[i], U64(move))
            empty = U64(0) if after == boards[i] else empty_mask(after)
            while empty != U64(0):
                two = empty & (~empty + U64(1))
                empty ^= two
                children[at], children[at + 1] = after | two, after | two << U64(1)
                at += 2
            counts[i, move] = at - first
    return at


@kernel
def _expect(before: Any, counts: Any, children: Any, leaves: Any, scored: Any, table: Any, out: Any) -> None:
    """Write the expectations of each move's children, with its reward if ``scored``; NaN without children."""
    boards, seen = before
    calibrated = table.shape[1] != 0
    at = 0
    for i in range(boards.shape[0]):
        highest = max_exponent(boards[i])
        for move in range(4):
            count = counts[i, move]
            network = score = reach = end = 0.0
            after, new = slide(boards[i], U64(move)), False
            phase = phase_four = 0.0
            if calibrated:
                top, total = max_exponent(after), tile_sum(after)
                new = top > highest or wins(boards[i], U64(move))
                phase, phase_four = phase_at(top, total + U64(2)), phase_at(top, total + U64(4))
            for k in range(at, at + count):
                four = (k - at) & 1
                chance = _P_FOUR if four else _P_TWO
                network += chance * leaves[k]
                if calibrated and leaves[k] == 0 and legal_mask(children[k]) == 0:
                    end += chance
                elif calibrated:
                    one_score, one_reach = look_up(table, phase_four if four else phase, leaves[k])
                    score += chance * one_score
                    reach += chance * one_reach
            at += count
            cells = count // 2
            network = np.nan if count == 0 else network / cells
            out[2, i, move] = network + (merge_score(seen[i], U64(move)) if scored else U64(0))
            out[0, i, move], out[1, i, move] = out[2, i, move], np.nan
            out[3, i, move] = np.nan if count == 0 else end / cells
            if calibrated and count != 0:
                won = wins(boards[i], U64(move))
                out[0, i, move] = merge_score(boards[i], U64(move)) + (0.0 if won else score / cells)
                out[1, i, move] = 1.0 if new else reach / cells


@kernel
def _follow(before: Any, moves: Any, following: Any, out: Any) -> None:
    """Write the downgraded board after each move and spawn, whether the spawn is known, and both rewards."""
    (boards, seen), (after, known, rewards, seen_rewards) = before, out
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        known[i] = move < U64(4) and spawn_between(boards[i], move, following[i]) != U64(0)
        after[i], rewards[i], seen_rewards[i] = WON, 0.0, 0.0
        if known[i]:
            rewards[i], seen_rewards[i] = merge_score(boards[i], move), merge_score(seen[i], move)
            if following[i] != WON:
                # The spawn on the downgraded board has the same cell and tile.
                after[i] = slide(seen[i], move) | (slide(boards[i], move) ^ following[i])


@kernel
def downgrade_boards(boards: Any, exponent: Any) -> None:
    """Replace boards that have a tile of at least ``exponent`` by boards of smaller tiles, in place."""
    for i in range(boards.shape[0]):
        if max_exponent(boards[i]) >= exponent:
            boards[i] = downgraded(boards[i])
