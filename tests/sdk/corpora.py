"""Directories of several sessions of played games, ours and of others, and what a corpus makes of them."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests import reference

from .builders import Game, Spec, step_dtype, write_foreign, write_ours

#: Session names, in the order in which a corpus has them. The last one is of somebody else: no manifest, no
#: row columns, runs that take turns, shards.
OURS = ("20250102T030405Z_model=strong", "20250103T030405Z_model=weak", "20250103T040405Z_model=weak-2")
THEIRS = "theirs"

PLAYERS = {OURS[0]: "a" * 64, OURS[1]: "b" * 64, OURS[2]: "b" * 64}
#: Game ids of each session; ids of one session come up again in another.
IDS = {OURS[0]: range(1, 14), OURS[1]: range(1, 10), OURS[2]: range(10, 22), THEIRS: range(5, 14)}
HIGHEST = (256, 2048, 8192, 16384, 32768)


def move_between(before: list[int], after: list[int]) -> int:
    """The one move that, with a spawn, leads from a board to the next; 254 where several do, 255 for none."""
    found = []
    for move in reference.legal_moves(before):
        afterstate = reference.slide(before, move)[0]
        for cell in reference.empty_cells(afterstate):
            found += [move for tile in (1, 2) if [*afterstate[:cell], tile, *afterstate[cell + 1 :]] == after]
    return found[0] if len(found) == 1 else 254 if found else 255


@functools.cache
def boards(seed: int) -> tuple[list[list[int]], list[int]]:
    """Boards and moves of a random player's game."""
    game = reference.play_random(seed)
    return [move.cells for move in game.moves], [move.move for move in game.moves]


def games(name: str) -> list[Game]:
    """The games of a session. They are cut short, and their highest tile is made up, as are scores."""
    owner = (*OURS, THEIRS).index(name)
    found = []
    for i in IDS[name]:
        steps = min(len(boards(i)[0]), (1, 3, 90, 17, 40)[(i + owner) % 5])
        highest = HIGHEST[(i * 7 + owner) % 5]
        found.append(Game(i, steps, highest, seed=2**63 + 100 * owner + i, max_score=i * 1000 + owner))
    return found


@dataclasses.dataclass
class Built:
    """A directory of sessions, and its rows and runs by the plain definition."""

    root: Path
    rows: NDArray[np.void]
    run: NDArray[np.int64]
    games: list[Game]
    session: list[int]
    moves: NDArray[np.uint8]

    def of_runs(self, chosen: NDArray[np.bool_]) -> NDArray[np.void]:
        """The rows of some runs."""
        return self.rows[chosen[self.run]]

    @property
    def highest(self) -> NDArray[np.int64]:
        return np.array([game.highest_tile for game in self.games])


def build(
    root: Path, *, theirs: bool = True, action: bool = False, sample_rate: int = 1, ours: int = 3
) -> Built:
    """Write the sessions."""
    names = [*OURS[:ours], *([THEIRS] if theirs else [])]
    rows, runs, played, owners, moves = [], [], [], [], []
    for owner, name in enumerate(names):
        rate = sample_rate if name != THEIRS else 1
        spec = Spec(
            games=games(name), action=action, sample_rate=rate, interleaved=name == THEIRS,
            change_rows=put_boards,
            facts={"rows": 0, "sample_rate": rate, "player_sha256": PLAYERS.get(name), "engine": "toy"},
        )  # fmt: skip
        if name == THEIRS:
            write_foreign(root / name, spec, shard_rows=70)
        else:
            spec.facts["rows"] = sum(-(-game.steps // rate) for game in spec.games)  # type: ignore[index]
            spec.facts["runs"] = len(spec.games)  # type: ignore[index]
            write_ours(root / name, spec)
        for game in spec.games:
            mine = np.zeros(-(-game.steps // rate), step_dtype(action=action))
            mine["run_id"] = game.id
            mine["step_idx"] = np.arange(len(mine)) * rate
            put_boards(mine)
            rows.append(mine)
            runs.append(np.full(len(mine), len(played)))
            played.append(game)
            owners.append(owner)
            # The next board has to be recorded to tell: not after the last row, nor in sampled sessions.
            made = np.full(len(mine), 255, np.uint8)
            for i in range(len(mine) - 1 if rate == 1 else 0):
                made[i] = move_between(mine["exps"][i].tolist(), mine["exps"][i + 1].tolist())
            moves.append(made)
    return Built(
        root, np.concatenate(rows), np.concatenate(runs), played, owners, np.concatenate(moves)
    )  # fmt: skip


def put_boards(rows: NDArray[np.void]) -> None:
    """The boards and moves of the random games whose seeds are the ids."""
    for row in rows:
        cells, made = boards(int(row["run_id"]))
        row["exps"] = cells[int(row["step_idx"])]
        if "action" in (rows.dtype.names or ()):
            row["action"] = made[int(row["step_idx"])]


def served(batches: Any, field: str = "row") -> list[list[int]]:
    """A field of each batch of the rest of an epoch."""
    return [batch[field].tolist() for batch in batches]
