"""Games and sessions on tape, made from the format and the reference rules, not by the code under test."""

import functools
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests import reference as ref

from tape2048.session.layout import RUN_DTYPE

from .builders import (
    OUR_SCHEMA,
    Game,
    Spec,
    crc_blocks,
    header_bytes,
    signed,
    step_dtype,
    write_database,
    write_manifest,
    write_ours,
)


class TapeGames(NamedTuple):
    """Whole games.

    Attributes:
        tape: ``u8[n]``.
        boards: ``u64[n]``, the board before each step.
        runs: ``RUN_DTYPE[G]``.
        starts: ``u64[G]``.
        finals: ``u64[G]``.
    """

    tape: NDArray[np.uint8]
    boards: NDArray[np.uint64]
    runs: NDArray[np.void]
    starts: NDArray[np.uint64]
    finals: NDArray[np.uint64]

    @property
    def moves(self) -> NDArray[np.uint8]:
        return self.tape & 3


def byte_of(afterstate: list[int], following: list[int], move: int) -> int:
    """The byte of one step."""
    (cell,) = (cell for cell in range(16) if afterstate[cell] != following[cell])
    return move + 4 * cell + 64 * (following[cell] == 2)


#: The game that ends with a 65536, of 16,396 steps; a game of this seed begins with its first board.
WON_SEED = 15783
_WON_TAPE = Path(__file__).parents[1] / "data" / "golden.won"


@functools.cache
def _won_game() -> tuple[list[int], list[int], int, int, int]:
    tape = list(zlib.decompress(_WON_TAPE.read_bytes()))
    cells, boards, score = [2, 2] + [0] * 14, [], 0
    for byte in tape:
        assert ref.TOP not in cells
        boards.append(ref.pack(cells))
        after, gained = ref.slide(cells, byte & 3)
        assert after != cells
        cells, score = after, score + gained
        if byte < 128:
            assert not cells[byte >> 2 & 15]
            cells[byte >> 2 & 15] = 2 if byte & 64 else 1
    assert ref.TOP in cells
    return tape, boards, 0, score, 1 << ref.TOP


@functools.cache
def _game(seed: int) -> tuple[list[int], list[int], int, int, int]:
    """The bytes and the boards of a random game, its final board, score and highest tile."""
    if seed == WON_SEED:
        return _won_game()
    game = ref.play_random(seed)
    boards = [move.cells for move in game.moves]
    following = [*boards[1:], game.final]
    tape = [
        byte_of(move.afterstate, cells, move.move) for move, cells in zip(game.moves, following, strict=True)
    ]
    return tape, [ref.pack(cells) for cells in boards], ref.pack(game.final), game.score, 1 << max(game.final)


def games_on_tape(*seeds: int) -> TapeGames:
    """The random games of these seeds, one after the other; ``WON_SEED`` is the game with a 65536."""
    played = [_game(seed) for seed in seeds]
    runs = np.zeros(len(played), RUN_DTYPE)
    runs["run_id"], runs["seed"] = np.arange(len(played)) + 7, seeds
    runs["rows"] = runs["steps"] = [len(game[0]) for game in played]
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    runs["score"], runs["highest_tile"] = [game[3] for game in played], [game[4] for game in played]
    return TapeGames(
        np.array([byte for game in played for byte in game[0]], np.uint8),
        np.array([board for game in played for board in game[1]], np.uint64),
        runs,
        np.array([game[1][0] for game in played], np.uint64),
        np.array([game[2] for game in played], np.uint64),
    )


TAPE_SCHEMA = OUR_SCHEMA.replace("rows INT);", "rows INT, start_board BIGINT);", 1)


def write_tape(
    directory: Path, games: TapeGames, *, record_action: bool = True, anchor_rows: int = 16,
    block_rows: int = 100, sql: str = "", **facts: object,
) -> Path:  # fmt: skip
    """A session on tape as the format describes it, and the statements in ``sql`` executed on it."""
    directory.mkdir(parents=True)
    (directory / "tape.npy").write_bytes(plain_npy("|u1", games.tape))
    (directory / "anchors.npy").write_bytes(plain_npy("<u8", games.boards[::anchor_rows]))
    names = ("run_id", "seed", "steps", "score", "highest_tile", "first_row", "rows")
    columns = [*(games.runs[name].tolist() for name in names), games.starts.tolist()]
    write_database(
        directory / "metadata.db",
        TAPE_SCHEMA,
        [tuple(map(signed, run)) for run in zip(*columns, strict=True)],
        blocks=crc_blocks(games.tape, block_rows),
        facts=facts_of(games, record_action=record_action) | {"storage": "tape"} | facts,
        sql=sql,
    )
    write_manifest(directory, rows=len(games.tape), runs=len(games.runs), anchor_rows=anchor_rows)
    return directory


def write_rows(directory: Path, games: TapeGames, *, record_action: bool = True, **facts: object) -> Path:
    """The same games as a session of rows."""

    def put(rows: NDArray[np.void]) -> None:
        rows[:] = as_rows(games, record_action=record_action)

    table = [
        Game(*(int(run[name]) for name in ("run_id", "steps", "highest_tile", "seed", "score")))
        for run in games.runs
    ]
    facts = facts_of(games, record_action=record_action) | facts
    spec = Spec(games=table, action=record_action, facts=facts, change_rows=put, block_rows=len(games.tape))
    return write_ours(directory, spec)


def facts_of(games: TapeGames, *, record_action: bool) -> dict[str, Any]:
    """What a session of these games says of itself."""
    return {
        "rows": len(games.tape), "runs": len(games.runs), "sample_rate": 1, "record_action": record_action,
        "engine": "toy",
    }  # fmt: skip


def play(seed: int, _steps: int, _start: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Play a game again, as a session's player does."""
    games = games_on_tape(seed)
    return np.append(games.boards, games.finals), games.moves


def plain_npy(descr: str, values: NDArray[Any], claimed: int | None = None) -> bytes:
    """A ``.npy`` file of numbers; the header may claim another count."""
    count = len(values) if claimed is None else claimed
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}"
    return header_bytes(text.encode(), pad=True) + values.tobytes()


def as_rows(games: TapeGames, *, record_action: bool = True) -> NDArray[np.void]:
    """The same games as the rows of ``steps.npy``."""
    rows = np.zeros(len(games.tape), step_dtype(action=record_action))
    rows["run_id"] = np.repeat(games.runs["run_id"], games.runs["rows"])
    rows["step_idx"] = np.concatenate([np.arange(count) for count in games.runs["rows"].tolist()])
    rows["exps"] = [ref.unpack(board) for board in games.boards.tolist()]
    if record_action:
        rows["action"] = games.moves
    return rows
