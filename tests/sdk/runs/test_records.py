"""Branch values in rows: kept within [0, 1], else normalised and counted. The chosen move's is 1."""

from pathlib import Path

import numpy as np
import pytest

from tape2048.errors import MaintenanceError
from tape2048.runs import DataPack, Dataset, build_dataset, convert
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.packdat import PACKDAT_STEP_DTYPE, packdat_records

from ..run_builders import LEFT, PlainRun, a2run2_bytes, ref
from .set_builders import ALMOST_ONE, level

# All four moves are legal here.
BOARD = ref.pack([0] * 4 + [0, 1, 2, 0] + [0] * 8)

KEPT = [
    ((None, 0.25, 0.7, 1.0), [0.0, 0.25, 1.0, 1.0]),  # a 1.0 that was not chosen, too
    ((0.0, 0.5, 0.9, 0.5), [0.0, 0.5, 1.0, 0.5]),
    ((None, None, 0.3, None), [0.0, 0.0, 1.0, 0.0]),
    ((0.2, 0.2, 0.2, 0.2), [0.2, 0.2, 1.0, 0.2]),
]
NORMALISED = [
    ((None, 10.0, 30.0, 20.0), [0.0, 0.0, 1.0, 0.5]),
    ((None, 1.5, 0.5, 0.5), [0.0, ALMOST_ONE, 1.0, 0.0]),
    ((None, -0.5, 0.5, 0.0), [0.0, 0.0, 1.0, 0.5]),
]


def played(steps: list) -> PlainRun:
    """Moves to the left, each from a board on which all four moves are legal."""
    states, score = [BOARD], 0
    for _ in steps:
        cells, gained = ref.slide(ref.unpack(states[-1]), LEFT)
        spawned = ([*cells[:i], 1, *cells[i + 1 :]] for i in range(15, -1, -1) if not cells[i])
        states.append(ref.pack(next(after for after in spawned if len(ref.legal_moves(after)) == 4)))
        score += gained
    tile = 1 << max(ref.unpack(states[-1]))
    branches = [values for values, _ in steps]
    return PlainRun(states, [LEFT] * len(steps), branches, max_score=score, highest_tile=tile)


def write(path: Path, *games: PlainRun) -> Path:
    path.mkdir()
    for number, one in enumerate(games):
        (path / f"{number}.a2run2").write_bytes(a2run2_bytes(one))
    return path


class TestDataset:
    def test_values_outside_0_to_1_are_normalised(self, tmp_path: Path) -> None:
        runs = write(tmp_path / "runs", played(KEPT), played(NORMALISED), played([*KEPT, *NORMALISED]))
        built = build_dataset(tmp_path / "ds", runs)
        expected = [row for _, row in [*KEPT, *NORMALISED, *KEPT, *NORMALISED]]
        found = np.load(tmp_path / "ds/steps.npy")["ev_values"]
        np.testing.assert_array_equal(found, np.array(expected, np.float32))
        assert built.normalised == 2

    def test_values_that_the_rows_do_not_tell_are_lost(self, tmp_path: Path) -> None:
        """A run whose values are not normalised keeps none of the chosen ones."""
        build_dataset(tmp_path / "ds", write(tmp_path / "runs", played(KEPT), played(NORMALISED[:1])))
        opened = Dataset(tmp_path / "ds")
        assert opened.run_and_losses(0)[2] == len(KEPT)
        run, _, lost = opened.run_and_losses(1)
        assert lost == 0
        np.testing.assert_array_equal(run.branch_values[0], np.float32([0, 0, ALMOST_ONE, 0.5]))

    @pytest.mark.parametrize("name", ["ds", "pack.dat"])
    def test_convert_says_what_would_change(self, tmp_path: Path, name: str) -> None:
        for number, steps in enumerate(([KEPT[1]], [NORMALISED[0]])):
            runs = write(tmp_path / f"runs{number}", played(steps))
            kind = None if "." in name else "dataset"
            with pytest.raises(MaintenanceError):
                convert(runs / "0.a2run2", tmp_path / name, kind)
            done = convert(runs / "0.a2run2", tmp_path / f"{number}-{name}", kind, lossy=True)
            assert any("of a chosen move that was not best" in loss for loss in done.lost)


class TestPackDat:
    def test_levels_are_those_of_the_format_s_first_writer(self) -> None:
        pack = DataPack.build([RunV2.from_bytes(a2run2_bytes(played([*KEPT, *NORMALISED])))])
        expected = [[level(value) for value in row] for _, row in [*KEPT, *NORMALISED]]
        np.testing.assert_array_equal(pack.records(np.arange(7))["ev_q"], expected)
        assert pack.normalised == 1

    def test_rounding_is_in_float32(self) -> None:
        """``(v * 65535 + 0.5) as u16``: in float64 some of these would be one level lower."""
        below = np.float32([(n + 0.5) / 65535 for n in range(65535)])
        values = np.concatenate([below, np.nextafter(below, np.float32(0))])
        values = np.append(values, np.random.default_rng(1).random(2000, np.float32))
        count = len(values)
        run = PlainRun([BOARD] * (count + 1), [LEFT] * count, [(None, float(v), 0.0, None) for v in values])
        rows = np.empty(count, PACKDAT_STEP_DTYPE)
        packdat_records(RunV2.from_bytes(a2run2_bytes(run)), 0, rows.view(np.uint8))
        found = rows["ev_q"][:, 1]
        expected = (values * np.float32(65535) + np.float32(0.5)).astype(np.uint16)
        np.testing.assert_array_equal(found, expected)
        exact = np.rint(values.astype(np.float64) * 65535)
        assert (expected != exact).any()
        assert np.abs(expected - exact).max() <= 1

    def test_appending_counts_on(self) -> None:
        raw = RunV2.from_bytes(a2run2_bytes(played(NORMALISED)))
        pack = DataPack.build([raw])
        pack.append([raw, RunV2.from_bytes(a2run2_bytes(played(KEPT)))])
        assert pack.normalised == 2
