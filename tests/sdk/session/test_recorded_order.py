"""The order of sessions: by start and counter in a listing, and by ids where the newest are chosen."""

import shutil
from itertools import permutations
from pathlib import Path

import pytest

from tape2048 import Corpus, sessions
from tape2048.session.recorded_order import Recorded, recorded_order
from tape2048_tools.sessions.retention_plan import candidates

from ..builders import Game, Spec, write_ours

SECOND = "20260101T120000Z_model=toy"
FACTS = {"player": "toy", "player_sha256": "a" * 64, "instance": "default", "seed": 1, "model_tag": "toy"}


def recorded(hour: float, ids: tuple[int, int], **facts: object) -> Recorded:
    return Recorded.of(f"{hour}", 3600 * hour, {**FACTS, **facts}, ids)


@pytest.mark.parametrize(
    "expected",
    [
        [recorded(1, (0, 9)), recorded(2, (10, 19)), recorded(3, (20, 29))],
        [recorded(5, (0, 9)), recorded(4, (10, 19)), recorded(4.5, (20, 29)), recorded(6, (30, 39))],
        # The second one has a game that was in progress; the last one only such games.
        [recorded(1, (0, 9)), recorded(2, (5, 19)), recorded(3, (7, 12))],
        [recorded(4, (5, 19)), recorded(5, (0, 9)), recorded(4.5, (10, 29))],
        # Other leases, seeds and instances, and sessions without games, have their starts.
        [recorded(1, (50, 59)), recorded(2, (0, 9), seed=2), recorded(3, (10, 19), instance="b")],
        [recorded(1, (50, 59)), recorded(2, ((7 << 40) + 1, (7 << 40) + 9)), recorded(3, (60, 61))],
        [recorded(float("nan"), (0, 9), seed=None), recorded(1, (5, 6)), recorded(2, (0, 3), seed=None)],
    ],
)
def test_ids_decide_before_starts(expected: list[Recorded]) -> None:
    for given in permutations(expected):
        assert [given[i] for i in recorded_order(given)] == expected


def write(root: Path, name: str, first: int) -> Path:
    games = tuple(Game(first + i, 8, seed=first + i) for i in range(3))
    stamp = name[:15]
    started = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:11]}:{stamp[11:13]}:{stamp[13:15]}Z"
    return write_ours(root / name, Spec(games=games, facts={**FACTS, "started_at": started}))


def test_thirteen_sessions_of_one_second(tmp_path: Path) -> None:
    """Listings, retention and newest_rows agree."""
    names = [SECOND, *(f"{SECOND}-{number}" for number in range(2, 14))]
    for number, name in enumerate(names):
        write(tmp_path, name, 3 * number)
    assert [path.name for path in sessions(tmp_path)] == names
    assert [one.name for one in candidates(tmp_path)[0]] == names
    corpus = Corpus.open(tmp_path, newest_rows=2 * 24)
    assert [one.name for one in corpus.sessions] == names[-2:]


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """The sessions after the jump are the newest."""
    hours = (11, 12, 10, 11)
    names = [f"20260101T{hour}{number:02}00Z_model=toy" for number, hour in enumerate(hours)]
    for number, name in enumerate(names):
        write(tmp_path, name, 3 * number)
    assert [one.name for one in candidates(tmp_path)[0]] == names
    assert {one.name for one in Corpus.open(tmp_path, newest_rows=2 * 24).sessions} == {*names[2:]}
    shutil.rmtree(tmp_path / names[3])
    assert Corpus.open(tmp_path, newest_rows=1).sessions[0].name == names[2]
