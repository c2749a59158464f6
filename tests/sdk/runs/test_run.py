"""Runs in memory, and the row view that all run formats share."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from tape2048.files.row_source import row_numbers
from tape2048.runs.run import ROW_DTYPE, Run, RunMeta, RunRows


def run_of(steps: int, *, branches: bool = True, first: int = 100) -> Run:
    """A run whose every number tells where it stands."""
    return Run(
        states=np.arange(first, first + steps + 1, dtype=np.uint64),
        moves=(np.arange(steps) % 4).astype(np.uint8),
        meta=RunMeta(steps=steps, start_unix_s=1, elapsed_s=0.5, max_score=9, highest_tile=8, engine="x"),
        **(
            {
                "branch_values": np.arange(4 * steps, dtype=np.float32).reshape(-1, 4),
                "branch_legal": np.full(steps, 0b0101, np.uint8),
                "has_branches": np.ones(steps, np.bool_),
            }
            if branches
            else {}
        ),
    )


class TestRun:
    def test_boards_are_a_view_of_the_states(self) -> None:
        run = run_of(3)
        assert run.boards.tolist() == [100, 101, 102]
        assert run.boards.base is run.states
        assert run.final_board == 103
        assert len(run) == 3

    def test_a_run_without_moves(self) -> None:
        run = run_of(0)
        assert len(run) == len(run.boards) == 0
        assert run.final_board == 100
        assert run.get_batch([]).shape == (0,)
        assert len(run[:]) == 0

    def test_arrays_that_do_not_fit_are_refused(self) -> None:
        changes: list[tuple[dict[str, object], str]] = [
            ({"moves": np.zeros(2, np.uint8)}, "moves"),
            ({"moves": np.zeros(3, np.int64)}, "moves"),
            ({"states": np.zeros(3, np.uint64)}, "states"),
            ({"meta": RunMeta(steps=4)}, "states"),
            ({"branch_values": None}, "all three"),
            ({"branch_values": np.zeros((3, 4), np.float64)}, "branch_values"),
            ({"branch_legal": np.zeros(4, np.uint8)}, "branch_legal"),
            ({"has_branches": np.zeros(3, np.uint8)}, "has_branches"),
        ]
        for change, message in changes:
            with pytest.raises(ValueError, match=message):
                dataclasses.replace(run_of(3), **change)
        with pytest.raises(TypeError, match=r"moves is a list; expected uint8\[3\]"):
            dataclasses.replace(run_of(3), moves=[0, 0, 0])

    def test_from_boards(self) -> None:
        run = run_of(3, branches=False)
        assert Run.from_boards(run.boards, run.moves, run.final_board, run.meta).equals(run)
        # A list with boards on both sides of 2**63, of which NumPy makes floats.
        boards = [1, 2**63 + 1, 2**64 - 1]
        assert Run.from_boards(boards, [0, 1, 3], 2, RunMeta(3)).states.tolist() == [*boards, 2]
        assert Run.from_boards([], [], 2, RunMeta(0)).states.tolist() == [2]

    def test_numbers_that_do_not_fit_are_refused(self) -> None:
        given: list[tuple[Any, Any, int, str]] = [
            ([1.5], [0], 1, r"boards: found 1\.5, expected a number that uint64 can hold"),
            (np.array([1.0]), [0], 1, r"boards: found 1\.0"),
            ([2**64], [0], 1, "boards: found 18446744073709551616"),
            (np.array([-1]), [0], 1, "boards: found -1"),
            ([1], [0.7], 1, r"moves: found 0\.7, expected a number that uint8 can hold"),
            ([1], np.array([256]), 1, "moves: found 256"),
            ([1], ["2"], 1, "moves: found '2'"),
            ([1], [0], -1, "final_board: found -1"),
        ]
        for boards, moves, final, message in given:
            with pytest.raises(ValueError, match=message):
                Run.from_boards(boards, moves, final, RunMeta(1))

    def test_equals_compares_bits(self) -> None:
        run = run_of(3)
        assert run.equals(pickle.loads(pickle.dumps(run)))  # noqa: S301 - our own bytes
        assert not run.equals(run_of(3, branches=False))
        assert not run.equals(run_of(3, first=101))
        assert not run.equals(dataclasses.replace(run, meta=RunMeta(steps=3)))
        quiet, other = run_of(3), run_of(3)
        quiet.branch_values.view(np.uint32)[1, 1] = 0x7FC00001
        other.branch_values.view(np.uint32)[1, 1] = 0x7FC00002
        assert not quiet.equals(other)
        other.branch_values.view(np.uint32)[1, 1] = 0x7FC00001
        assert quiet.equals(other)


class TestRows:
    def test_a_row_is_a_step(self) -> None:
        row = run_of(3)[2]
        assert row.dtype == ROW_DTYPE
        assert (row["board"], row["move"], row["ev_legal"], row["step_index"]) == (102, 2, 5, 2)
        assert row["ev_values"].tolist() == [8, 9, 10, 11]

    def test_without_branch_values_rows_have_none(self) -> None:
        rows = run_of(3, branches=False)[:]
        assert not rows["ev_legal"].any()
        assert not rows["ev_values"].any()

    def test_batches_come_in_the_order_requested(self) -> None:
        run = run_of(5)
        assert run.get_batch([4, 0, 0])["board"].tolist() == [104, 100, 100]
        assert run[[True, False, False, True, False]]["board"].tolist() == [100, 103]
        assert run[::-2]["board"].tolist() == [104, 102, 100]
        assert [row["step_index"] for row in run] == list(range(5))

    def test_many_runs_as_one(self) -> None:
        runs = [run_of(3, first=100), run_of(0), run_of(4, first=200, branches=False), run_of(1, first=300)]
        rows = RunRows(runs)
        assert len(rows) == 8
        assert rows[-1]["board"] == 300
        everything = rows[:]
        assert everything["board"].tolist() == [100, 101, 102, 200, 201, 202, 203, 300]
        assert everything["run_id"].tolist() == [0, 0, 0, 2, 2, 2, 2, 3]
        assert everything["step_index"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
        shuffled = np.random.default_rng(0).integers(0, 8, 50)
        assert rows.get_batch(shuffled).tobytes() == everything[shuffled].tobytes()
        assert len(rows.get_batch([])) == 0
        assert RunRows(iter(runs))[:].tobytes() == everything.tobytes()
        with pytest.raises(IndexError):
            rows.get_batch([8])

    def test_empty_masks_and_lists(self) -> None:
        assert row_numbers(np.zeros(0, np.bool_), 0).tolist() == []
        assert row_numbers([], 0).dtype == np.int64
