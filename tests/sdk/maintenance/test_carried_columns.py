"""Columns go with their rows: repacked, merged, validated, removed."""

import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Session, errors
from tape2048.maintenance import validate_session
from tape2048.maintenance.merging import merge_sessions
from tape2048.maintenance.removal import explain_refusal
from tape2048.runs import convert
from tape2048.runs.repack import repack_session
from tape2048.session import column_draft

from ..builders import NAME, write_foreign, write_ours
from ..session.test_columns import make_values, put
from ..tapes import games_on_tape, write_rows, write_tape
from .test_merging_tapes import FACTS

SEEDS = (1, 2, 3, 4, 9, 15)


def write(root: Path, number: int, seeds: Sequence[int], storage: str) -> Path:
    path = root / f"20250102T03{number:02d}00Z_model=toy"
    facts = {**FACTS, "started_at": f"2025-01-02T03:{number:02d}:00Z"}
    return (write_rows if storage == "rows" else write_tape)(path, games_on_tape(*seeds), **facts)


def by_game(*sessions: Session) -> dict[tuple[str, int, int], bytes]:
    """The value of each column by the seed of its game and the step."""
    return {
        (name, int(session.runs["seed"][run]), int(step)): value.tobytes()
        for session in sessions
        for name in session.columns
        for run, step, value in zip(
            session.run_index(slice(None)),
            session.read_rows(0, len(session))["step_idx"],
            session.column(name).values,
            strict=True,
        )
    }


def infos(session: Session) -> list[Any]:
    """What a column says of itself, but for its rows."""
    return [
        (info.name, info.dtype, info.width, {"maker": None, **info.facts})
        for info in session.columns.values()
    ]


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Chunks of several sessions, and several chunks of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_draft, "CHUNK_ROWS", 300)
        yield


COLUMNS = st.dictionaries(
    st.sampled_from(["embeddings", "loss", "values"]),
    st.tuples(st.sampled_from(["bool", "bf16", "f32", "u64"]), st.sampled_from([None, 1, 4])),
)


def put_all(session: Session, columns: dict[str, tuple[str, int | None]]) -> None:
    for name, (dtype, width) in columns.items():
        put(session.path, session, name, make_values(len(session), dtype, width), dtype, thresholds=[256])


@pytest.mark.parametrize("storage", ["rows", "tape"])
@given(columns=COLUMNS)
@settings(deadline=None, max_examples=4)
def test_repacked(storage: str, columns: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    session = Session.open(write(root, 0, SEEDS, storage))
    put_all(session, columns)
    for other in ("tape" if storage == "rows" else "rows", storage):
        again = Session.open(repack_session(session.path, root / other, other).path)  # type: ignore[arg-type]
        assert by_game(again) == by_game(session)
        assert infos(again) == infos(session)
        assert validate_session(again.path).ok
        session = again


@pytest.mark.parametrize("storage", ["rows", "tape"])
@given(seeds=st.permutations(SEEDS), cut=st.sampled_from([(1, 2), (2, 5), (3, 4)]), columns=COLUMNS)
@settings(deadline=None, max_examples=4)
def test_merged(
    storage: str, seeds: Any, cut: Any, columns: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    parts = [seeds[: cut[0]], seeds[cut[0] : cut[1]], seeds[cut[1] :]]
    sessions = [Session.open(write(root, *numbered, storage)) for numbered in enumerate(parts)]
    for session in sessions:
        put_all(session, columns)
    merged = Session.open(merge_sessions([each.path for each in sessions[::-1]], root / "merged").path)
    assert by_game(merged) == by_game(*sessions)
    assert infos(merged) == infos(sessions[0])
    assert validate_session(merged.path).ok


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"maker": "another release"}, ""),
        ({"player": "b"}, "loss: the sessions differ in player"),
        ({"dtype": "f64"}, "loss: .*loss.json: dtype 'f64'"),
        ({"rows": 3}, "loss: .*loss.json: made of 3 rows"),
        (None, "loss: .*no loss.json"),
    ],
)  # fmt: skip
def test_merged_of_some(tmp_path: Path, caplog: Any, changes: dict[str, Any] | None, why: str) -> None:
    """Columns that some sessions lack or have otherwise are named, or refused before anything is written."""
    sessions = [Session.open(write(tmp_path, number, [number + 1], "rows")) for number in range(2)]
    for session, more in zip(sessions, ({}, changes), strict=True):
        put(session.path, session, "best", np.ones(len(session), np.uint8), "u8")
        if more is not None:
            put(session.path, session, "loss", np.zeros(len(session), "<f4"), "f32", **{"player": "a"} | more)
    paths = [session.path for session in sessions]
    if why:
        with pytest.raises(errors.MaintenanceError, match=f"columns would be lost: {why}"):
            merge_sessions(paths, tmp_path / "out", all_columns=True)
        assert not (tmp_path / "out").exists()
    with caplog.at_level(logging.WARNING):
        merged = Session.open(merge_sessions(paths, tmp_path / "out").path)
    assert list(merged.columns) == ["best"] if why else ["best", "loss"]
    assert len(caplog.messages) == bool(why)
    assert all(re.match(f"columns left out: {why}", line) for line in caplog.messages)


def test_validated(tmp_path: Path) -> None:
    """Every column of the session and of the overlay; an unfinished one is a note."""
    session = Session.open(write(tmp_path / "root", 0, [1], "tape"))
    path, overlay = session.path, tmp_path / "columns"
    zeros = np.zeros(len(session), "<f4")
    for place in (path, overlay / path.name):
        put(place, session, "loss", zeros, "f32")
        put(place, session, "short", zeros[1:], "f32", rows=len(zeros))
        put(place, session, "other", zeros, "f32", steps_crc32c=7)
        put(place, session, "half", zeros, "f32")
        (place / "half.json").unlink()
        (place / ".values.partial").mkdir()
    for columns, places in ((None, [path]), (overlay, [path, overlay / path.name])):
        report = validate_session(path, columns=columns)
        assert {found.error for found in report.findings} == {"ColumnError"}
        damaged = [place / name for place in places for name in ("half.json", "other.json", "short.f32.npy")]
        assert [found.path for found in report.findings] == list(map(str, damaged))
        assert report.notes == tuple(f"unfinished column: {place / '.values.partial'}" for place in places)
    shutil.rmtree(overlay)
    assert len(validate_session(path, columns=overlay).findings) == 3


def test_removed_with_its_columns(tmp_path: Path) -> None:
    session = Session.open(write(tmp_path, 0, [1], "rows"))
    put(session.path, session, "mine", np.zeros(len(session)), "f64")
    (session.path / ".values.partial").mkdir()
    assert explain_refusal(session.path) is None
    (session.path / ".Values.partial").mkdir()
    assert "holds .Values.partial" in str(explain_refusal(session.path))


@pytest.mark.parametrize("make", [write_ours, write_foreign])
def test_converted_sessions_have_none(tmp_path: Path, caplog: Any, make: Any) -> None:
    session = Session.open(make(tmp_path / "from" / NAME))
    put(session.path, session, "loss", np.zeros(len(session)), "f64")
    for number, source in enumerate((session.path, session.path.parent)):
        convert(source, tmp_path / str(number), "session", lossy=True)
        assert list(Session.open(tmp_path / str(number)).columns) == []
    assert len(caplog.messages) == 2
    assert all(": columns left out: loss" in message for message in caplog.messages)
