r"""Values of moves: loss and luck of a game's moves.

Loss and luck are in points of score or in the probability to reach a tile.

A judge values boards before a move: :math:`V_0(b)` is the best reward and value of an n-tuple network's
moves (:mod:`tape2048_recorder.players.ntuple`), or the probability that a critic gives a tile. One spawn
further ahead, moves and boards have the values

.. math::

    q(b, a) = r(b, a) + \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e\, V_0(b_{c,e}), \qquad
    V(b) = \max_a q(b, a)

with :math:`p_1 = 0.9`, :math:`p_2 = 0.1`; rewards count for points alone. A board without moves is worth 0;
with the tile it has the probability 1. The move :math:`a_t` with the reward :math:`r_t` and its spawn have

.. math::

    loss_t &= V(b_t) - q(b_t, a_t) \ge 0 \\
    luck_t &= r_t + V_0(b_{t+1}) - q(b_t, a_t) \\
    revision_t &= V(b_{t+1}) - V_0(b_{t+1})

Luck is the value after the spawn minus its expectation over the spawns, both by :math:`V_0`: without a bias.
Revision is the rest: how the value of a board changes once the judge looks from it. It is where the judge
errs, or hoped for better moves than the next one. The three telescope,

.. math::

    \sum_t (luck_t - loss_t + revision_t) = \sum_t r_t + V(b_n) - V(b_0)

for a game that ended: the final score, minus the first value.

Networks value boards from a highest tile on as boards of smaller tiles
(:func:`tape2048_recorder.players.ntuple.downgraded`). A board, its moves and their spawns then have the
values of the smaller board. If two boards were reduced differently, the difference is part of the revision.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError, TapeError
from tape2048.game.moves import UNKNOWN, recover
from tape2048.game.rules import (
    WON,
    as_packed,
    boards_to_exps,
    empty_mask,
    legal_masks,
    max_exponent,
    merge_score,
    slide,
    wins,
)
from tape2048.jit.compiler import kernel
from tape2048.ntuple.lookup import downgraded
from tape2048.players import plies_of
from tape2048_recorder.players.ntuple import best_answers, move_values
from tape2048_recorder.players.options import check_player, make_player, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Leaf = Callable[[NDArray[np.uint64]], NDArray[np.floating[Any]]]

U64 = np.uint64

_P_TWO, _P_FOUR = 0.9, 0.1

_PIECE_BOARDS = 1024  # boards valued at a time, and by one thread: each leads to 50 others
_CHILDREN_MAX = 30  # boards that one move can lead to, at most: a 2 or a 4 in 15 cells
_AHEAD_MAX = 2  # spawns that a player can be made to look ahead
_ALWAYS = 16  # a look_below that no board exceeds
#: Score of a network that looks a spawn ahead, over the score that it expects: 1.46 for two shipped networks.
_DEEPER_SCORES = 1.5


class Judged(NamedTuple):
    """A judged game of n moves; NaN where a move is unknown or does not lead to the next board."""

    values: npt.NDArray[np.float32]  # f32[n, 4], of each move (up, down, left, right); NaN if it is illegal
    state: npt.NDArray[np.float64]  # f64[n + 1], the best value of each board; without moves the outcome
    loss: npt.NDArray[np.float64]  # f64[n], at least 0
    luck: npt.NDArray[np.float64]  # f64[n], of the spawn after the move
    revision: npt.NDArray[np.float64]  # f64[n], the rest

    def largest_losses(self, count: int = 50) -> npt.NDArray[np.int64]:
        """Return the moves with a loss, the largest loss first, ``i64[k]``, ``k <= count``."""
        order = np.argsort(-np.nan_to_num(self.loss), kind="stable")[:count]
        return order[self.loss[order] > 0]


class Spawn(NamedTuple):
    """A spawn after a move."""

    cell: int  # 0 (top left) to 15
    tile: int  # 2 or 4
    probability: float  # of this cell and tile
    board: int  # the board with it, packed
    value: float  # of that board


class Option(NamedTuple):
    """A legal move of a board."""

    move: int  # 0 up, 1 down, 2 left, 3 right
    value: float  # as in Judged
    reward: int  # its merge score
    afterstate: int  # the board after it and before the spawn, packed
    spawns: tuple[Spawn, ...]  # all that can follow, by cell, the 2 before the 4


class Judge:
    """Values of boards and moves, by a player or by a critic: see :meth:`of_player`, :meth:`of_critic`.

    Attributes:
        name: for people.
        unit: ``"points"`` or ``"probability"``.
        tile: the tile of the probability; None for points.
        identity: SHA-256 (hex): equal hashes give equal values.
        weights: the n-tuple network; empty for a critic.
        ahead: spawns that it looks ahead.
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
        weights: str = "",
        ahead: int = 1,
    ) -> None:
        self.name, self.identity, self.tile = name, identity, tile
        self.weights, self.ahead = weights, ahead
        self.unit = "points" if tile is None else "probability"
        self._leaf, self._threads = leaf, threads
        self._downgrade_exponent = U64(downgrade_exponent)

    @classmethod
    def of_player(
        cls, name: str = "ntuple", args: Mapping[str, Any] | None = None, *, ahead: int = 1
    ) -> Self:
        """Return the judge that values moves as a player does, always so many spawns ahead."""
        full = check_player(name, args or {})
        if name != "ntuple":
            raise ConfigError(
                f"found the judge {name!r}, expected ntuple",
                hint="judge by an n-tuple network, which values moves by the points to come, or by a critic",
            )
        if not 1 <= ahead <= _AHEAD_MAX:
            raise ConfigError(f"found a judge that looks {ahead} spawns ahead, expected 1 to {_AHEAD_MAX}")
        settings = {"look_below": 16 if ahead > 1 else 0, "look_margin": 0.0}
        player = make_player(name, {key: full[key] for key in ("weights", "downgrade")} | settings)

        def leaf(boards: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
            if ahead == 1:
                return best_answers(player, boards)
            return np.nan_to_num(_best(move_values(player, boards)), copy=False)

        spawns = "a spawn" if ahead == 1 else f"{ahead} spawns"
        return cls(
            f"{name}:weights={full['weights']}, {spawns} ahead",
            leaf,
            hashlib.sha256(f"judge 1 {player_sha256(name, player)}".encode()).hexdigest(),
            downgrade_exponent=int(player.downgrade_exponent),
            threads=available_cores(),
            weights=str(full["weights"]),
            ahead=ahead,
        )

    @classmethod
    def of_recorded(cls, facts: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return the judge of a session's games: its player's network, 2-ply or 3-ply.

        It searches 3-ply if the player always searches 2-ply, and otherwise 2-ply. If the network cannot be
        read, a message gives the reason, and the default network judges. It also judges the games of players
        without a network.
        """
        args = facts.get("player_args") if facts.get("player") in {"ntuple", "critic"} else None
        if not isinstance(args, dict):
            return cls.of_player(), None
        always = facts["player"] == "ntuple" and args.get("look_below") == _ALWAYS
        network = {key: args[key] for key in ("weights", "downgrade") if key in args}
        try:
            return cls.of_player("ntuple", network, ahead=1 + always), None
        except (TapeError, OSError) as error:
            return cls.of_player(), f"The default network judges, since the player's cannot be read: {error}."

    def weakness(self, facts: Mapping[str, Any], first: float) -> str | None:
        """Return a warning if the judge is weaker than the player of a session, else None.

        ``facts`` has the mean score of its games as ``mean_score``. ``first`` is the value of the first
        board. With the player's own network, a judge is weaker if it looks fewer spawns ahead. With another
        network, it is weaker if the mean score is above 1.5 times ``first``: one ply deeper, a network scores
        about as much.
        """
        args, mean = facts.get("player_args"), facts.get("mean_score") or 0
        if self.tile is not None:
            return None
        if isinstance(args, dict) and args.get("weights") == self.weights:
            if (plies := plies_of("ntuple", args)) <= self.ahead + 1:
                return None
            reason = f"the player searches up to {plies}-ply with the same network, this {self.ahead + 1}-ply"
        elif mean <= _DEEPER_SCORES * first:
            return None
        else:
            reason = f"it expects {first:,.0f} points, and the player scores {mean:,.0f} on average"
        return f"This judge is weaker than the player: {reason}. Its losses are not the player's mistakes."

    @classmethod
    def of_critic(
        cls,
        critic: Callable[[NDArray[np.uint64]], NDArray[np.float32]],
        tile: int,
        *,
        thresholds: Sequence[int],
        sha256: str,
        name: str = "critic",
    ) -> Self:
        """Return the judge that values boards by a critic's probability to reach a tile."""
        if tile not in thresholds:
            raise ConfigError(
                f"found the tile {tile}, and the critic predicts {', '.join(map(str, thresholds))}",
                hint=f"for example {thresholds[-1]}",
            )
        column, exponent = list(thresholds).index(tile), tile.bit_length() - 1

        def leaf(boards: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
            reached = (boards_to_exps(boards).max(axis=1, initial=0) >= exponent) | (boards == WON)
            decided = reached | (legal_masks(boards) == 0)
            return np.where(decided, reached.astype(np.float32), critic(boards)[:, column])

        identity = hashlib.sha256(f"judge 1 {sha256} {tile}".encode())
        return cls(f"{name}, P({tile})", leaf, identity.hexdigest(), tile=tile)

    def game(self, boards: ArrayLike, moves: ArrayLike) -> Judged:
        """Judge a game."""
        states = np.ascontiguousarray(as_packed(boards))
        made = np.asarray(moves)
        known = recover(states, made).moves != UNKNOWN
        made = np.where((made < 0) | (made > 3), UNKNOWN, made).astype(np.uint8)
        steps = len(made)
        seen = self._seen(states)
        values = self._values(seen)
        state = _best(values).astype(np.float64)
        ended = np.isnan(state)
        state[ended] = self._leaf(states[ended])
        chosen = np.where(made < 4, values[np.arange(steps), made & 3], np.nan).astype(np.float64)
        loss = state[:-1] - chosen
        following = np.empty(steps, np.uint64)
        rewards = np.empty((2, steps))
        _follow(states, seen, np.where(known, made, 0), following, rewards)
        reward, seen_reward = rewards if self.tile is None else np.zeros_like(rewards)
        luck = np.where(known, seen_reward + self._leaf(following) - chosen, np.nan)
        luck[known & (states[1:] == WON)] = 0.0  # no tile was spawned
        revision = reward + state[1:] - state[:-1] - luck + loss
        return Judged(values[:-1], state, loss, luck, revision)

    def board(self, board: int) -> list[Option]:
        """Return the legal moves of a packed board, each with its value and all its spawns."""
        packed = np.array([board], np.uint64)
        seen = self._seen(packed)
        counts, children = _children(seen)
        shown = _children(packed)[1]
        leaves, (values,) = self._leaf(children).tolist(), self._values(seen).tolist()
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
            found.append(Option(move, values[move], reward, after, tuple(sorted(spawns))))
        return found

    def _seen(self, boards: NDArray[np.uint64]) -> NDArray[np.uint64]:
        seen = boards.copy()
        if self._downgrade_exponent:
            downgrade_boards(seen, self._downgrade_exponent)
        return seen

    def _values(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        values = np.empty((len(boards), 4), np.float32)

        def fill(first: int) -> None:
            piece = boards[first : first + _PIECE_BOARDS]
            counts, children = _children(piece)
            leaves = np.asarray(self._leaf(children), np.float32)
            _expect(piece, counts, leaves, self.tile is None, values[first : first + _PIECE_BOARDS])

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(fill, range(0, len(boards), _PIECE_BOARDS)))
        return values


def _best(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the greatest of each board's values, ``f32[n]``; NaN without one. Faster than a reduction."""
    best: NDArray[np.float32] = np.fmax(*np.fmax(values.T[::2], values.T[1::2]))
    return best


def _children(boards: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    counts = np.empty((len(boards), 4), np.int64)
    children = np.empty(len(boards) * 4 * _CHILDREN_MAX, np.uint64)
    return counts, children[: _fill_children(boards, counts, children)]


@kernel
def _fill_children(boards: Any, counts: Any, children: Any) -> int:
    """Write the boards after each move and spawn: a 2 and a 4 in each empty cell, from the last cell on."""
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
def _expect(boards: Any, counts: Any, leaves: Any, scored: Any, values: Any) -> None:
    """Write the expectation of each move's children, with its reward if ``scored``; NaN without children."""
    at = 0
    for i in range(boards.shape[0]):
        for move in range(4):
            count = counts[i, move]
            total = 0.0
            for k in range(at, at + count, 2):
                total += _P_TWO * leaves[k] + _P_FOUR * leaves[k + 1]
            at += count
            value = np.nan if count == 0 else total / (count // 2)
            values[i, move] = value + (merge_score(boards[i], U64(move)) if scored else U64(0))


@kernel
def _follow(boards: Any, seen: Any, moves: Any, following: Any, rewards: Any) -> None:
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        following[i] = WON
        if boards[i + 1] != WON:
            following[i] = slide(seen[i], move) | (slide(boards[i], move) ^ boards[i + 1])
        rewards[0, i], rewards[1, i] = merge_score(boards[i], move), merge_score(seen[i], move)


@kernel
def downgrade_boards(boards: Any, exponent: Any) -> None:
    """Replace boards with a tile of at least ``exponent`` by boards of smaller tiles, in place."""
    for i in range(boards.shape[0]):
        if max_exponent(boards[i]) >= exponent:
            boards[i] = downgraded(boards[i])
