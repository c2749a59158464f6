r"""Calibrations of networks, from recorded games and from positions that are played on.

The outcomes of recorded games give the tables of a :class:`~tape2048.ntuple.calibration.Calibration`. They
hold for moves that were played. For differences between moves, positions with a loss are drawn from the
games, and the best move and the played move are each played on several times by the player of the games.
After :data:`MOVES_ON` moves, the calibrated value of the board replaces the rest of the game, whose spawns
would only add noise. The mean difference of a class of losses is the part that is real.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.game.rules import (
    WON,
    boards_to_exps,
    exps_to_boards,
    legal_masks,
    max_exponent,
    merge_score,
    slide,
    wins,
)
from tape2048.jit.compiler import kernel
from tape2048.ntuple.calibration import LOWEST, PARTS, SIZES, STEPS, Calibration, Differences
from tape2048.ntuple.outcomes import BoardOutcomes, fit, isotonic, phases_of
from tape2048.players import player_text
from tape2048.session.layout import START_BOARDS
from tape2048_recorder.evaluation.evaluated_games import rollout_seeds
from tape2048_recorder.game.player_api import NO_MOVE, choose
from tape2048_recorder.game.rng import spawn, start
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import check_player, make_player, own, player_sha256
from tape2048_recorder.replay.judging import Judge, JudgeArgs, best_of, downgrade_boards, leaf_player

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    Progress = Callable[[int, int], object]

U64 = np.uint64

#: Moves for which a position is played on before the calibrated value replaces the rest of the game.
MOVES_ON = 500

_WHOLE_GAME = 1 << 40  # moves
_GAMES_AT_ONCE = 8  # of a move, so that progress moves

_SUM_PER_MOVE = 2.2  # points that a spawn adds to the sum of tiles, on average
_FIRST_SUM = 4.4  # of the two first tiles
_JUDGED_PER_POSITION = 60  # rows that are judged to find a position with a loss of a wanted size
_LEAST_LOSS = 50.0
_ROLLOUTS_AT_ONCE = 4096
_POSITIONS_MIN = 10  # of a class of differences; smaller classes take the ratio of the class below


class PhaseSample(NamedTuple):
    """Rows of recorded games: a random row of each game and step of the phase, as far as the game went."""

    rows: NDArray[np.int64]
    games: NDArray[np.int64]  # ordinal of each row's game
    boards: NDArray[np.uint64]
    scores: NDArray[np.uint32]  # that came after the row
    reached: NDArray[np.bool_]  # whether the game reached the next tile
    moves: NDArray[np.float64]  # moves of the step that the row represents


def sample_of(corpus: Any, seed: int) -> PhaseSample:
    """Draw rows evenly over the phases of games, which must hold every board from the first one on."""
    random, runs = np.random.default_rng(seed), corpus.runs
    if (runs["rows"] != runs["steps"]).any():
        raise ConfigError(
            "found games with fewer rows than moves, expected every board",
            path=corpus.sessions[0].path,
            hint="Record with sample_rate = 1, or on tape.",
        )
    rows, games, moves = [], [], []
    for step in range((16 - LOWEST) * STEPS):
        tile = float(1 << LOWEST + step // STEPS)
        first = (tile * (1 + step % STEPS / STEPS) - _FIRST_SUM) / _SUM_PER_MOVE
        length = tile / STEPS / _SUM_PER_MOVE
        at = (first + random.random(len(runs)) * length).astype(np.int64)
        known = np.flatnonzero((at >= 0) & (at < runs["steps"]))
        rows.append(corpus.row_starts[known] + at[known])
        games.append(known)
        moves.append(np.full(len(known), length))
    order = np.argsort(at := np.concatenate(rows))
    found = corpus.fetch(at[order], ("tokens", "score_to_go", "highest_tile", "board_highest_tile"))
    reached = found["highest_tile"] > found["board_highest_tile"]
    boards, owners = exps_to_boards(found["tokens"]), np.concatenate(games)[order]
    return PhaseSample(at[order], owners, boards, found["score_to_go"], reached, np.concatenate(moves)[order])


def player_of(corpus: Any) -> Mapping[str, Any]:
    """Return the facts of the only player of a corpus, which must be an n-tuple player from new games."""
    if not len(corpus.runs):
        raise EmptyCorpusError("found no games", path=corpus.sessions[0].path if corpus.sessions else None)
    metas = [session.meta for session in corpus.sessions]
    for session, meta in zip(corpus.sessions, metas, strict=True):
        if meta.get("player") != "ntuple" or START_BOARDS in meta:
            raise ConfigError(
                f"found games of {player_text(meta)}{', from given boards' * (START_BOARDS in meta)}, "
                "expected games of an n-tuple network from new boards",
                path=session.path,
                hint="Record them: tape2048 record --player ntuple:weights=NETWORK --max-games 20000",
            )
    players = {str(meta.get("player_sha256")): player_text(meta) for meta in metas}
    if len(players) != 1:
        raise ConfigError(
            f"found games of {len(players)} players ({'; '.join(players.values())}), expected one player",
            hint="Pass the sessions of one player.",
        )
    found: Mapping[str, Any] = metas[0]
    return found


def calibrate(
    corpus: Any,
    *,
    positions: int,
    rollouts: int,
    seed: int,
    threads: int,
    progress: Progress | None = None,
) -> list[Calibration]:
    """Calibrate the judge of a player's games, and the values of the player itself if they differ.

    Args:
        corpus: games of one n-tuple player, a :class:`tape2048.Corpus`.
        positions: number of positions to play on.
        rollouts: number of times that each move of a position is played on.
        seed: seed of the sample and of the rollouts.
        threads: number of threads.
        progress: function that is called with the positions played on, and their number.

    Raises:
        ConfigError: the games are of several players, of another kind of player, or not whole.
        EmptyCorpusError: there are no games.
    """
    facts = player_of(corpus)
    args = check_player("ntuple", facts["player_args"])
    player = make_player("ntuple", args)
    sha256, text = player_sha256("ntuple", player), player_text(facts)
    if sha256 != facts.get("player_sha256"):
        raise ConfigError(
            f"found games of {text} {facts.get('player_sha256')}, expected {sha256}: the network changed",
            path=corpus.sessions[0].path,
            hint="Pass sessions of the network in the file.",
        )
    sample = sample_of(corpus, seed)
    judge = Judge.of_recorded(facts)[0]
    leaf = leaf_player(JudgeArgs(str(args["weights"]), int(args["downgrade"]), judge.ahead))
    found: list[Calibration] = []
    for one in (leaf, player):
        values_of = player_sha256("ntuple", one)
        if values_of in {each.values_of for each in found}:
            continue
        values = _values(one, sample.boards, threads)
        tables: Any = fit(
            BoardOutcomes(phases_of(sample.boards), values, sample.scores, sample.reached, sample.games)
        )
        found.append(Calibration(values_of, sha256, text, len(corpus.runs), **tables))
    judge = judge.calibrated(found[0])
    differences, lost = _differences(judge, player, corpus, sample, positions, rollouts, seed, progress)
    found[0] = msgspec.structs.replace(found[0], differences=differences, lost=round(lost))
    return found


def _values(player: Any, boards: NDArray[np.uint64], threads: int) -> NDArray[np.float32]:
    seen = boards.copy()
    if player.downgrade_exponent:
        downgrade_boards(seen, player.downgrade_exponent)
    with ThreadPoolExecutor(threads) as pool:
        parts = pool.map(lambda some: best_of(move_values(player, some)), np.array_split(seen, 64 * threads))
        values: NDArray[np.float32] = np.nan_to_num(np.concatenate(list(parts)))
    return values


class Position(NamedTuple):
    """Positions with two moves to compare."""

    boards: NDArray[np.uint64]
    best: NDArray[np.int64]  # the judge's best move
    played: NDArray[np.int64]
    differences: NDArray[np.float32]  # of the network's values
    part: NDArray[np.int64]  # 0 early, 1 middle, 2 late


def positions_of(
    judge: Judge, corpus: Any, sample: PhaseSample, count: int, seed: int
) -> tuple[Position, NDArray[np.uint8], NDArray[np.int64]]:
    """Return positions of all parts and sizes, as many of each; and the moves of a random part of rows."""
    random = np.random.default_rng(seed + 1)
    some = np.sort(random.permutation(len(sample.rows))[: count * _JUDGED_PER_POSITION])
    # On tape, the last move of a game is known, too.
    field = "action" if all(session.tape is not None for session in corpus.sessions) else "move"
    moves = corpus.fetch(sample.rows[some], (field,))[field]
    boards = sample.boards[some]
    values = judge.network_values(boards)
    chosen_values = values[np.arange(len(some)), moves & 3]
    loss = np.where(moves < 4, best_of(values) - chosen_values, 0)
    part = np.searchsorted(PARTS, boards_to_exps(boards).max(axis=1), "right")
    size = np.searchsorted(_edges(), loss, "right") - 1
    chosen: list[NDArray[np.int64]] = []
    for cell in range(3 * len(SIZES)):
        here = np.flatnonzero((size == cell % len(SIZES)) & (part == cell // len(SIZES)))
        chosen.append(random.permutation(here)[: -(-count // (3 * len(SIZES)))])
    at = np.concatenate(chosen)
    best = np.nan_to_num(values[at], nan=-np.inf).argmax(axis=1)
    return Position(boards[at], best, moves[at].astype(np.int64), loss[at], part[at]), moves, some


def _edges() -> NDArray[np.float64]:
    return np.append(_LEAST_LOSS, np.sqrt(np.multiply(SIZES[1:], SIZES[:-1])))


def _differences(
    judge: Judge, player: Any, corpus: Any, sample: PhaseSample, count: int, rollouts: int, seed: int,
    progress: Progress | None,
) -> tuple[Differences, float]:  # fmt: skip
    chosen, moves, some = positions_of(judge, corpus, sample, count, seed)
    measured = compare_moves(judge, player, chosen, rollouts, seed, progress)
    size = np.searchsorted(_edges(), chosen.differences, "right") - 1
    tables: dict[str, list[list[Any]]] = {name: [] for name in Differences.__struct_fields__}
    for part in range(3):
        here = [(chosen.part == part) & (size == number) for number in range(len(SIZES))]
        rows = [
            _class(chosen.differences[each], measured[each], SIZES[number])
            for number, each in enumerate(here)
        ]
        found = fitted_differences(np.array(rows))
        for table, values in zip(tables.values(), found, strict=True):
            table.append(values.round().astype(int).tolist())
    differences = Differences(**tables)
    assert judge.calibration is not None
    known = judge.calibrated(msgspec.structs.replace(judge.calibration, differences=differences))
    values, at = known.values_of(sample.boards[some]), (np.arange(len(some)), moves & 3)
    kept = np.where(moves < 4, best_of(values) - values[at], 0)
    lost = (kept * sample.moves[some]).sum() * len(sample.rows) / max(len(some), 1) / len(corpus.runs)
    return differences, float(lost)


def fitted_differences(classes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the real part, its error and the number of positions of each size, ``f64[3, S]``.

    ``classes`` has them as measured, ``f64[S, 3]``. The real share of a difference does not fall with its
    size, by isotonic regression. A class with few positions takes the share of the class below.
    """
    real, errors, positions = classes.T
    sizes, known = np.array(SIZES), np.flatnonzero(positions >= _POSITIONS_MIN)
    if not len(known):
        return np.array([sizes, sizes, positions])
    weights = (sizes / np.maximum(errors, 1))[known] ** 2
    shares = np.maximum(isotonic(real[known] / sizes[known], weights), 0)
    nearest = np.maximum(np.searchsorted(known, np.arange(len(sizes)), "right") - 1, 0)
    scale = sizes / sizes[known[nearest]]
    return np.array([shares[nearest] * sizes, errors[known[nearest]] * scale, positions])


def _class(
    printed: NDArray[np.float32], measured: NDArray[np.float64], size: float
) -> tuple[float, float, int]:
    """Return the real difference at ``size``, its standard error, and the number of positions."""
    if len(printed) < 2:
        return size, size, len(printed)
    ratio = size / float(printed.mean())
    error = float(measured.std(ddof=1)) / len(printed) ** 0.5
    return float(measured.mean()) * ratio, error * ratio, len(printed)


def compare_moves(
    judge: Judge, player: Any, chosen: Position, rollouts: int, seed: int, progress: Progress | None = None,
    moves_on: int = MOVES_ON,
) -> NDArray[np.float64]:  # fmt: skip
    """Play on from both moves of positions; return the mean differences of their outcomes."""
    means = np.empty((2, len(chosen.boards)))
    seeds = rollout_seeds(seed, len(chosen.boards), 2 * rollouts).reshape(len(chosen.boards), 2, rollouts)
    at_once = max(1, _ROLLOUTS_AT_ONCE // rollouts)

    def play(first: int) -> int:
        mine = own(player)
        part = slice(first, first + at_once)
        for side, moves in enumerate((chosen.best, chosen.played)):
            begins = np.repeat(chosen.boards[part], rollouts)
            outcomes = played_on(
                judge, mine, begins, np.repeat(moves[part], rollouts), seeds[part, side].reshape(-1), moves_on
            )
            means[side, part] = outcomes.reshape(-1, rollouts).mean(axis=1)
        return first

    with ThreadPoolExecutor(judge.threads) as pool:
        for first in pool.map(play, range(0, len(chosen.boards), at_once)):
            if progress:
                progress(min(first + at_once, len(chosen.boards)), len(chosen.boards))
    differences: NDArray[np.float64] = means[0] - means[1]
    return differences


def played_on(
    judge: Judge, player: Any, boards: NDArray[np.uint64], moves: NDArray[np.int64],
    seeds: NDArray[np.uint64], moves_on: int,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the points of a move and of those after it, ``f64[n]``, with the value of the last board."""
    gained, ends = play_on(player, boards, moves, seeds, moves_on)
    outcomes: NDArray[np.float64] = gained + judge.outcomes(ends)[0]
    return outcomes


def play_on(
    player: Any, boards: NDArray[np.uint64], moves: NDArray[np.int64], seeds: NDArray[np.uint64],
    moves_on: int = _WHOLE_GAME,
) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:  # fmt: skip
    """Make a move on each board, and play on; return the points, ``f64[n]``, and the last boards."""
    gained, ends = np.zeros(len(boards)), np.empty(len(boards), np.uint64)
    _play_on(player, boards, moves, seeds, moves_on, gained, ends)
    return gained, ends


class PlayedOn(msgspec.Struct, frozen=True):
    """The games after a move.

    Args:
        move: 0 up, 1 down, 2 left, 3 right.
        games: number of games.
        score: mean score that came after the board, with the points of the move.
        error: its standard error.
        reached: number of games that reached the next tile.
    """

    move: int
    games: int
    score: float
    error: float
    reached: int


def play_moves_on(
    board: int, player: Any, *, games: int, seed: int, threads: int, progress: Progress | None = None,
    moves: Collection[int] = range(4),
) -> list[PlayedOn]:  # fmt: skip
    """Play whole games from each legal move of a board.

    Args:
        board: packed board.
        player: a compiled player.
        games: number of games for each move, at least 2.
        seed: seed of the games.
        threads: number of threads.
        progress: function that is called with the games played, and their number.
        moves: the moves to play, of which illegal moves are left out.
    """
    packed = np.array([board], U64)
    legal = [move for move in moves if int(legal_masks(packed)[0]) >> move & 1]
    highest = int(max_exponent(packed[0]))
    seeds = rollout_seeds(seed, 1, games)[0]
    parts = [
        (move, seeds[at : at + _GAMES_AT_ONCE]) for at in range(0, games, _GAMES_AT_ONCE) for move in legal
    ]

    def play(part: tuple[int, NDArray[np.uint64]]) -> tuple[int, NDArray[np.float64], NDArray[np.uint64]]:
        move, some = part
        boards, moves = np.full(len(some), board, U64), np.full(len(some), move)
        return move, *play_on(own(player), boards, moves, some)

    found: dict[int, list[Any]] = {move: [] for move in legal}
    with ThreadPoolExecutor(threads) as pool:
        for done, (move, gained, ends) in enumerate(pool.map(play, parts), start=1):
            reached = (boards_to_exps(ends).max(axis=1) > highest) | (ends == WON)
            found[move].append((gained, reached))
            if progress:
                progress(done * games * len(legal) // len(parts), games * len(legal))
    results = []
    for move, pieces in found.items():
        gained, reached = (np.concatenate(each) for each in zip(*pieces, strict=True))
        error = float(gained.std(ddof=1)) / games**0.5
        results.append(PlayedOn(move, games, float(gained.mean()), error, int(reached.sum())))
    return results


@kernel
def _play_on(player: Any, boards: Any, moves: Any, seeds: Any, moves_on: Any, gained: Any, ends: Any) -> None:
    for i in range(boards.shape[0]):
        state, gamma = start(seeds[i])
        board, move, left = boards[i], U64(moves[i]), moves_on
        after = slide(board, move)
        while True:
            gained[i] += merge_score(board, move)
            if wins(board, move):
                board = U64(WON)
                break
            board, _, state = spawn(after, state, gamma)
            if left == 0:
                break
            left -= 1
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                break
        ends[i] = board
