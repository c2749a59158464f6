"""Steps of a pack in batches, and splits, against plain Python."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import errors
from tape2048.files.row_source import ROW_DTYPE
from tape2048.packs import PackReader

from .. import run_builders as build
from ..run_builders import ref

GAMES = [build.game(seed, steps_max=3 + 4 * seed) for seed in range(12)]
PAYLOADS = [build.a2run2_bytes(g) if i % 2 else build.a2t1_bytes(g) for i, g in enumerate(GAMES)]
LENGTHS = [len(game.moves) for game in GAMES]
STEPS = [(run, step) for run, length in enumerate(LENGTHS) for step in range(length)]


@pytest.fixture
def pack(tmp_path: Path) -> PackReader:
    (tmp_path / "x").write_bytes(build.a2pack_bytes(build.PackSpec(PAYLOADS)))
    return PackReader.open(tmp_path / "x")


def drawn(count: int, seed: int) -> list[int]:
    """The order that a seed promises: on every machine, in every release."""
    keys = [ref.mix64((seed + (i + 1) * ref.GOLDEN_GAMMA) % ref.WORD) for i in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def steps_of(batches: Any) -> list[tuple[int, int]]:
    rows = np.concatenate(list(batches))
    return list(zip(rows["run_id"].tolist(), rows["step_index"].tolist(), strict=True))


class TestStepBatches:
    @pytest.mark.parametrize("batch_size", [1, 5, len(STEPS), 10**6])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_every_step_once(self, pack: PackReader, batch_size: int, shuffle: bool) -> None:
        batches = list(pack.iter_step_batches(batch_size, shuffle=shuffle, seed=3, workers=2))
        sizes = [len(batch) for batch in batches]
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
        assert 0 < sizes[-1] <= batch_size
        order = drawn(len(STEPS), 3) if shuffle else range(len(STEPS))
        assert steps_of(batches) == [STEPS[i] for i in order]
        for row in np.concatenate(batches):
            game, step = GAMES[row["run_id"]], row["step_index"]
            assert (row["board"], row["move"]) == (game.states[step], game.moves[step])
            branches = game.branches[step] if row["run_id"] % 2 else None
            legal = sum(1 << move for move, value in enumerate(branches or ()) if value is not None)
            assert row["ev_legal"] == legal
            assert row["ev_values"].tolist() == [value or 0 for value in branches or (0, 0, 0, 0)]
        assert {batch.dtype for batch in batches} == {ROW_DTYPE}

    def test_the_seed_decides_the_order(self, pack: PackReader) -> None:
        def order(seed: int | None) -> list[tuple[int, int]]:
            return steps_of(pack.iter_step_batches(7, shuffle=True, seed=seed))

        assert order(1) != order(2)
        assert len({tuple(order(None)) for _ in range(5)}) > 1
        assert order(1) == order(1)

    def test_a_bad_entry_is_raised_where_it_is_reached(self, tmp_path: Path) -> None:
        payloads = [PAYLOADS[0], PAYLOADS[1][:-1]]
        (tmp_path / "y").write_bytes(build.a2pack_bytes(build.PackSpec(payloads)))
        batches = PackReader.open(tmp_path / "y").iter_step_batches(2, workers=1)
        assert len(next(batches)) == 2
        with pytest.raises(errors.TruncatedError, match="entry 1"):
            list(batches)

    def test_nothing_to_iterate(self, tmp_path: Path) -> None:
        (tmp_path / "y").write_bytes(build.a2pack_bytes(build.PackSpec([])))
        for shuffle in (False, True):
            assert list(PackReader.open(tmp_path / "y").iter_step_batches(2, shuffle=shuffle)) == []


class TestSplit:
    @pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.25, 3), (0.5, 6), (0.99, 11)])
    def test_by_runs(self, pack: PackReader, share: float, count: int) -> None:
        train, test = pack.split(test_pct=share, seed=42)
        assert test.indices.tolist() == sorted(drawn(12, 42)[:count])
        assert sorted([*train.indices, *test.indices]) == list(range(12))
        assert [run.final_board for run in test] == [GAMES[i].states[-1] for i in test.indices]
        again = pack.split("run", None, count, 42)
        assert [part.indices.tolist() for part in again] == [train.indices.tolist(), test.indices.tolist()]

    def test_by_steps(self, pack: PackReader) -> None:
        train, test = pack.split(unit="step", test_pct=0.3, seed=1)
        target, order, chosen = int(0.3 * sum(LENGTHS)), drawn(12, 1), []
        while sum(LENGTHS[i] for i in chosen) < target:
            chosen.append(order[len(chosen)])
        assert test.indices.tolist() == sorted(chosen)
        assert len(train) + len(test) == 12
        assert len(pack.split(unit="step", test_size=10**9)[0]) == 0

    def test_in_order(self, pack: PackReader) -> None:
        assert pack.split(test_size=3, order="sequential")[1].indices.tolist() == [0, 1, 2]
        steps = LENGTHS[0] + 1
        assert pack.split("step", test_size=steps, order="sequential")[1].indices.tolist() == [0, 1]

    def test_no_game_is_on_both_sides(self, pack: PackReader) -> None:
        parts = [
            steps_of(part.iter_step_batches(4, shuffle=True, seed=5)) for part in pack.split(test_pct=0.3)
        ]
        assert sorted(parts[0] + parts[1]) == STEPS
        assert not {run for run, _ in parts[0]} & {run for run, _ in parts[1]}

    def test_seeds(self, pack: PackReader) -> None:
        def test_part(seed: int | None) -> list[int]:
            return pack.split(test_size=5, seed=seed)[1].indices.tolist()

        assert test_part(1) == test_part(1) != test_part(2)
        assert pack.split(test_size=5)[1].indices.tolist() == test_part(0)
        assert len({tuple(test_part(None)) for _ in range(8)}) > 1

    def test_a_part_does_what_a_pack_does(self, pack: PackReader) -> None:
        _, view = pack.split(test_size=6, seed=9)
        chosen = view.indices.tolist()
        assert isinstance(view, PackReader)
        assert [len(run) for run in view] == [LENGTHS[i] for i in chosen]
        assert view[np.int64(2)].equals(pack[chosen[2]])
        assert [len(run) for batch in view.iter_batches(4) for run in batch] == [LENGTHS[i] for i in chosen]
        assert [len(run) for run in view.iter_indices([5, 0])] == [LENGTHS[chosen[5]], LENGTHS[chosen[0]]]
        assert len(view.rows()) == sum(LENGTHS[i] for i in chosen)
        for i in (-1, 6):
            with pytest.raises(IndexError, match=f"run {i}"):
                view[i]
        inner = view.split(test_size=2, seed=9)
        assert sorted([*inner[0].indices, *inner[1].indices]) == chosen
        sent = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own bytes
        assert [len(run) for run in sent] == [len(run) for run in view]
        assert repr(view) == "<PackReader x: 6 of 12 runs>"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "expected exactly one value"),
            ({"test_pct": 0.5, "test_size": 1}, "expected exactly one value"),
            ({"test_pct": 0.0}, "share between 0 and 1"),
            ({"test_pct": 1}, "share between 0 and 1"),
            ({"test_pct": float("nan")}, "share between 0 and 1"),
            ({"test_size": 0}, "at least 1"),
            ({"test_size": 1.5}, "a whole number"),
            ({"test_size": 1, "unit": "game"}, "'run' or 'step'"),
            ({"test_size": 1, "order": "sorted"}, "'random' or 'sequential'"),
        ],
    )
    def test_what_cannot_be_split(self, pack: PackReader, arguments: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            pack.split(**arguments)
