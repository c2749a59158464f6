"""The audit, on games of a simulator that shares no code with the product."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import TruncatedError
from tape2048.game import board_score, recover
from tape2048.game.moves import count_spawns
from tape2048.runs import AuditCheck, Run, RunMeta, audit, convert, run_line, write_session

from ..builders import change_database
from ..run_builders import ref
from ..simulator import FAULTS, Game, play, write

#: The first check that finds a fault, unless it breaks a rule.
FOUND_BY = {
    "stale count, at least 1": "2 empty cells",
    "share of 4s of 0.12": "share of 4s",
    "never the last of several empty cells": "2 empty cells",
}
HONEST = play("none", 1, 30_000)[:-1]  # whole games


def runs_of(games: list[Game] = HONEST, **facts: Any) -> list[Run]:
    made = []
    for game in games:
        tile = 1 << max(int(game.states[-1]) >> shift & 15 for shift in range(0, 64, 4))
        meta = {"steps": len(game.moves), "max_score": game.score, "highest_tile": tile} | facts
        made.append(Run(game.states, game.moves, RunMeta(**meta)))
    return made


def write_lines(path: Path, runs: list[Run]) -> Path:
    path.write_bytes(b"".join(run_line(run, number) for number, run in enumerate(runs)))
    return path


def by_name(path: Path) -> dict[str, AuditCheck]:
    return {check.name: check for check in audit(path).checks}


def test_false_alarms_keep_the_level(tmp_path: Path) -> None:
    """Of 100 audits of real 2048, a share of p fails at the level p, with and without recorded moves."""
    lowest = []
    for seed in range(100):
        games = play("none", 1000 + seed, 11_000)
        found = audit(write(tmp_path / str(seed), games, action=seed % 2 == 0), workers=1)
        assert found.is_2048, found.verdict
        lowest.append(min(check.p_holm for check in found.checks if check.p_holm is not None))
        shutil.rmtree(tmp_path / str(seed))
    for level in (0.05, 0.2, 0.5):
        share = np.mean(np.array(lowest) <= level)
        assert share <= level + 3 * np.sqrt(level / 100), level
        assert share >= level / 3, "the p-values are no smaller than they should be"


@pytest.mark.parametrize("action", [True, False])
@pytest.mark.parametrize("fault", FAULTS[1:])
def test_faults_are_found(tmp_path: Path, fault: str, action: bool) -> None:
    found = audit(write(tmp_path / "s", play(fault, 5, 12_000), action=action))
    first = next(check for check in found.checks if check.ok is False)
    assert (found.is_2048, found.verdict) == (False, f"this is not 2048: {first.text}")
    assert first.name == FOUND_BY.get(fault, "moves, merges, spawns")


@pytest.mark.parametrize(
    "name", ["x.a2pack", "x.dat", "x.jsonl", "x.parquet", "runs", "ds", "rows", "tape", "no-moves"]
)
def test_every_source_is_audited(tmp_path: Path, name: str) -> None:
    """Sources hold more or less of the same games, and no convention of theirs is a fault."""
    lines = write_lines(tmp_path / "x.jsonl", runs_of())
    if name in {"rows", "tape"}:
        write_session(tmp_path / name, runs_of(), storage=name)
    elif name == "no-moves":
        write(tmp_path / name, HONEST, action=False)
    elif name != "x.jsonl":
        convert(lines, tmp_path / name, {"runs": "a2run2", "ds": "dataset"}.get(name), lossy=True)
    found = audit(tmp_path / name)
    assert (found.is_2048, found.games, found.skipped) == (True, len(HONEST), [])
    moves = sum(len(game.moves) for game in HONEST)
    assert found.moves == (moves - len(HONEST) if name == "no-moves" else moves)
    unchecked = {check.name for check in found.checks if check.ok is None} - {"15 empty cells"}
    assert unchecked == ({"ends"} if name == "no-moves" else set())
    once = {check.name: check.sample for check in audit(lines).checks}
    same = {
        check.name: check.sample for check in found.checks if "empty" not in check.name or name != "no-moves"
    }
    assert {key: once[key] for key in same if key != "ends"} == {k: v for k, v in same.items() if k != "ends"}


def test_repeated_games_and_their_spawns_count_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies, and games of several players from one seed, would make chance look like a fault."""
    once = by_name(write_lines(tmp_path / "1.jsonl", runs_of()))
    assert by_name(write_lines(tmp_path / "2.jsonl", 2 * runs_of())) == once
    assert caplog.messages == [f"left out: {len(HONEST)} games that {tmp_path / '2.jsonl'} holds twice"]
    seeded = runs_of(engine=f"tape2048 0.1.0 greedy player_sha256={'ab' * 32} seed=7")
    assert by_name(write_lines(tmp_path / "3.jsonl", seeded))["cells of starts"].sample == 2


def test_only_recorded_scores_are_checked(tmp_path: Path) -> None:
    """Some programs record no score, and some the score of the board."""
    board_scores = [board_score(run.states[-1]) for run in runs_of()]
    boards = [runs_of([game], max_score=score)[0] for game, score in zip(HONEST, board_scores, strict=True)]
    nothing = runs_of(max_score=0, highest_tile=0)
    for runs, ok, sample in ((nothing, None, 0), (boards, True, 120), (runs_of(max_score=1), False, 120)):
        check = by_name(write_lines(tmp_path / "x.jsonl", runs))["scores"]
        assert (check.ok, check.sample) == (ok, sample)


def test_unrecorded_moves_favour_no_cell() -> None:
    """Two moves may explain a spawn in one cell of a board, and then its other cells do not count, either."""
    sizes = set()
    for board in {int(state) for seed in range(40) for state in play("none", seed, 4)[0].states}:
        for move in ref.legal_moves(ref.unpack(board)):
            after, _ = ref.slide(ref.unpack(board), move)
            counts = np.zeros((17, 18), np.int64)
            for cell in ref.empty_cells(after):
                states = np.array([board, ref.pack(after) | 1 << (60 - 4 * cell)], np.uint64)
                explained = [m for m in range(4) if recover(states, np.array([m])).moves[0] == m]
                count_spawns(states, np.array(explained[-1:], np.uint8), False, counts)
            empty = after.count(0)
            assert counts[empty, 16] == empty
            (size,) = set(counts[empty, :empty].tolist())
            sizes.add(size)
    assert sizes == {0, 1}


def test_starts_and_ends(tmp_path: Path) -> None:
    """A game may start late and break off, but none starts with one tile."""
    cut = [play("none", seed, 40)[0] for seed in range(100)]
    late = [Game(game.states[9:], game.moves[9:], game.score) for game in cut]
    found = by_name(write_lines(tmp_path / "late.jsonl", runs_of(late)))
    assert (found["starts"].ok, found["scores"].ok, found["cells of starts"].ok) == (True, True, None)
    assert found["ends"].text == "0 of 100 games end without a legal move, 100 break off"
    convert(tmp_path / "late.jsonl", tmp_path / "late.dat", lossy=True)
    guessed = by_name(tmp_path / "late.dat")
    assert (guessed["scores"].ok, guessed["ends"].ok) == (True, True)
    assert guessed["share of 4s"].sample == found["share of 4s"].sample - 100
    single = [Game(np.array([0x1, 0x0001000000000001], np.uint64), np.array([0], np.uint8), 0)]
    assert by_name(write_lines(tmp_path / "x.jsonl", runs_of(single)))["starts"].ok is False


def test_sampled_rows_are_not_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "s", HONEST)
    rows = np.load(path / "steps.npy")
    np.save(path / "steps.npy", rows[rows["step_idx"] % 3 == 0])
    found = audit(path)
    assert (found.is_2048, found.moves, found.skipped) == (None, 0, [])
    assert "not checked: " in found.checks[4].text
    change_database(path / "metadata.db", "INSERT INTO session VALUES ('sample_rate', '3')")
    assert "one step in 3 was recorded" in audit(path).checks[4].text


def test_few_moves_are_too_few(tmp_path: Path) -> None:
    found = audit(write(tmp_path / "s", play("none", 3, 10)))
    assert (found.is_2048, found.moves) == (None, 10)
    assert found.verdict.startswith("too few to tell: ")


def test_max_moves_stops_after_a_game(tmp_path: Path) -> None:
    path = write(tmp_path / "s", HONEST)
    seen: list[tuple[int, int]] = []
    found = audit(path, max_moves=9_000, workers=1, progress=lambda *at: seen.append(at))
    assert 9_000 <= found.moves < 9_000 + max(len(game.moves) for game in HONEST)
    assert 0 < seen[-1][0] < seen[-1][1] == len(HONEST)


def test_damage_affects_only_itself(tmp_path: Path) -> None:
    """A damaged run or session is skipped; a damaged source raises its error."""
    first, second = (tmp_path / f"2026010{day}T000000Z_model=x" for day in (1, 2))
    for path in (first, second):
        write_session(path, runs_of(), storage="tape")
    data = bytearray((first / "tape.npy").read_bytes())
    data[-1] ^= 1 << 2  # another cell for the last tile, where all are full
    (first / "tape.npy").write_bytes(data)
    (second / "tape.npy").write_bytes(b"")
    found = audit(tmp_path)
    assert (found.is_2048, found.games) == (True, len(HONEST) - 1)
    assert [one.error for one in found.skipped] == ["ReplayError", "TruncatedError"]
    with pytest.raises(TruncatedError):
        audit(second)
