"""Sums over recorded runs."""

import numpy as np
from hypothesis import given, strategies as st

from tape2048.base.text import counted
from tape2048.session.layout import RUN_DTYPE
from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.recording.publish import Published
from tape2048_recorder.status.status_report import HISTORY_MAX, History, Tally

RUNS = st.lists(st.tuples(st.integers(0, 2**22), st.integers(1, 16), st.integers(1, 1000)), max_size=40)


@given(st.lists(RUNS, max_size=5))
def test_a_tally_is_what_counting_all_at_once_gives(batches: list[list[tuple[int, int, int]]]) -> None:
    tally = Tally()
    for batch in batches:
        runs = np.zeros(len(batch), dtype=RUN_DTYPE)
        for run, (score, exponent, steps) in zip(runs, batch, strict=True):
            run["score"], run["highest_tile"], run["steps"], run["rows"] = (
                score, 1 << exponent, steps, steps,
            )  # fmt: skip
        tally.add(runs)
    everything = [run for batch in batches for run in batch]
    assert tally.games == len(everything)
    assert tally.steps == tally.rows == sum(steps for _, _, steps in everything)
    if not everything:
        assert (tally.mean_score, tally.highest_tile) == (None, None)
        assert set(tally.reach.values()) == {0}
        return
    assert tally.mean_score == sum(score for score, _, _ in everything) / len(everything)
    assert tally.score_squares == sum(score**2 for score, _, _ in everything)
    assert tally.score_max == max(score for score, _, _ in everything)
    assert tally.highest_tile == 1 << max(exponent for _, exponent, _ in everything)
    for tile in REACH_TILES:
        reached = sum(1 << exponent >= tile for _, exponent, _ in everything)
        assert tally.reach[tile] == reached / len(everything)


def test_a_history_spans_all_time_with_few_points() -> None:
    history = History()
    for second in range(0, 100_000, 3):
        history.add(float(second), 2 * second)
        assert len(history.points) <= HISTORY_MAX
    times = np.array([at for at, _ in history.points])
    assert history.points[0] == (0.0, 0)
    assert times[-1] > 95_000
    assert np.diff(times).max() <= 3 * np.diff(times).min()
    assert all(count == 2 * at for at, count in history.points)


def test_one_is_not_said_in_the_plural() -> None:
    assert [counted(count, "game") for count in (0, 1, 2_346)] == ["0 games", "1 game", "2,346 games"]
    assert Published(None, 1, 1, 28_000, recovered=False, rows_lost=0).contents == "1 game, 1 row, 0.0 MB"
