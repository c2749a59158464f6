"""Writing columns: the same bytes whatever interrupted it, and old values or none until they are complete."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.crashes import crashes
from tests.recorder.disks import tmpfs, unsaid

from tape2048 import Session, errors
from tape2048.session.column_draft import ColumnDraft, ColumnPlan, Written, write_column, write_columns
from tape2048.session.columns import COLUMN_DTYPES, ColumnInfo

from ..builders import NAME, Spec, write_foreign, write_ours
from ..naming import Naming
from .test_columns import KINDS, checksum, make_values

ROWS = 20
CHUNK = 3  # seven chunks, the last one of two rows
PAIR = [
    ColumnInfo("values", "f32", 4, facts={"player": "a"}),
    ColumnInfo("best", "u8", facts={"player": "a"}),
]
FILES = ["values.f32.npy", "best.u8.npy", "values.json", "best.json"]


def pair_of(rows: range, shift: int = 0) -> dict[str, Any]:
    numbers = np.arange(rows.start, rows.stop)[:, None]
    return {
        "values": (numbers + np.array([0.5, 1, 2, shift])).astype("<f4"),
        "best": (numbers[:, 0] + shift).astype("u1"),
    }


def write_pair(session: Session, columns: Any = PAIR, **how: Any) -> Written:
    shift = columns[0].facts.get("shift", 0)
    return write_columns(session, columns, lambda rows: pair_of(rows, shift), chunk_rows=CHUNK, **how)


def with_facts(**facts: Any) -> list[ColumnInfo]:
    return [ColumnInfo(each.name, each.dtype, each.width, facts=facts) for each in PAIR]


def content(place: Path) -> dict[str, bytes]:
    return {name: (place / name).read_bytes() for name in FILES}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.open(write_ours(tmp_path / NAME))


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    session = Session.open(write_ours(tmp_path / "other" / NAME))
    assert write_pair(session)[:3] == ("made", ROWS, ROWS)
    for name, values in pair_of(range(ROWS)).items():
        assert session.column(name).values.tobytes() == values.tobytes()
    return content(session.path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [None, 1, 3])
def test_written_values_are_read(tmp_path: Path, kind: str, width: int | None) -> None:
    """Of each type, at once or in chunks of any length, beside the rows or in an overlay."""
    path = KINDS[kind](tmp_path / "selfplay")
    before = sorted(path.iterdir())
    rng = random.Random(f"{kind} {width}")
    for dtype in COLUMN_DTYPES:
        session = Session.open(path, columns=tmp_path / "columns" if rng.random() < 0.5 else None)
        values = make_values(len(session), dtype, width)
        cuts = sorted(rng.choices(range(len(session) + 1), k=rng.randrange(4)))
        given = np.split(values, cuts) if cuts else values
        found = write_column(
            session, dtype, iter(given) if cuts else given, dtype=dtype, facts={"n": [1, None]}
        )
        assert found.path == session.column_places[0] / f"{dtype}.{dtype}.npy"
        assert found.values.tobytes() == np.load(found.path).tobytes() == values.tobytes()
        assert found.info.shape == values.shape
        assert found.info.facts == {"maker": "write_column", "n": [1, None]}
        file = path / ("tape.npy" if kind == "tape" else "steps.npy")
        assert (found.info.steps_crc32c is None) == (kind == "shards")
        assert checksum(session) in {None, found.info.steps_crc32c}, file
    shutil.rmtree(tmp_path / "columns", ignore_errors=True)
    for name in session.columns:
        (path / session.columns[name].npy_name).unlink()
        (path / f"{name}.json").unlink()
    assert sorted(path.iterdir()) == before, "nothing else is left"


def test_values_are_cast_if_they_fit(session: Session) -> None:
    numbers = np.arange(ROWS)
    assert write_column(session, "a", numbers, facts={"rows": 3}).info.dtype == "i64"
    assert write_column(session, "a", numbers.astype(">f4"), replace=True).info.dtype == "f32"
    assert write_column(session, "a", numbers, dtype="u8", replace=True).values.tolist() == list(range(ROWS))
    assert sorted(session.columns) == ["a"]
    assert write_column(session, "s", (n / 2 for n in range(ROWS))).values[-1] == (ROWS - 1) / 2
    assert not (session.path / "a.f32.npy").exists()
    for wrong, dtype in ((numbers - 1, "u8"), (numbers * 14, "u8"), (numbers / 2, "i32"), (numbers, "bool")):
        with pytest.raises(ValueError, match=f"in column 'b'; expected {dtype}"):
            write_column(session, "b", wrong, dtype=dtype)
    upper = np.array([0, 0x3F80, 0x3F81, 0x7F7F, 0xFF00], "<u4") << 16
    for lower, up in ((0, [0] * 5), (0x7FFF, [0] * 5), (0x8000, [0, 0, 1, 1, 0]), (0x8001, [1] * 5)):
        values = np.resize((upper | lower).view("<f4"), ROWS)
        expected = np.resize((upper >> 16) + up, ROWS)
        assert (
            write_column(session, "c", values, dtype="bf16", replace=True).values.tolist()
            == expected.tolist()
        )
    nan = write_column(session, "c", np.full(ROWS, np.nan), dtype="bf16", replace=True).values
    assert set(nan.tolist()) == {0x7FC0}


@pytest.mark.parametrize(
    ("name", "values", "how", "message"),
    [
        ("score", np.zeros(ROWS), {}, "built-in field"),
        ("../x", np.zeros(ROWS), {}, "column name"),
        ("manifest", np.zeros(ROWS), {}, "column name"),
        ("x", np.zeros(ROWS + 1), {}, f"more than {ROWS} rows"),
        ("x", np.zeros(ROWS - 1), {}, f"values of {ROWS - 1} rows"),
        ("x", [np.zeros(ROWS), np.zeros(0), np.zeros(1)], {}, f"more than {ROWS} rows"),
        ("x", [], {}, "values of 0 rows"),
        ("x", [np.zeros((10, 2)), np.zeros((10, 3))], {}, "shape"),
        ("x", np.zeros((ROWS, 1, 1)), {}, "shape"),
        ("x", np.zeros(ROWS, object), {}, "dtype 'object'"),
        ("x", np.zeros(ROWS), {"dtype": "f8"}, "dtype 'f8'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be(session: Session, name: str, values: Any, how: Any, message: str) -> None:
    before = sorted(session.path.iterdir())
    with pytest.raises(ValueError, match=message):
        write_column(session, name, values, **how)
    assert sorted(session.path.iterdir()) == before


def test_a_column_is_replaced_if_asked(session: Session) -> None:
    write_column(session, "x", np.zeros(ROWS))
    with pytest.raises(errors.ColumnError, match="has a column 'x'") as caught:
        write_column(session, "x", np.ones(ROWS))
    assert (caught.value.path, caught.value.hint) == (
        str(session.path / "x.json"), "Pass replace=True to replace it."
    )  # fmt: skip

    def failing() -> Any:
        yield np.ones(ROWS - 1)
        raise OSError("a disk of the caller")

    with pytest.raises(OSError, match="of the caller"):
        write_column(session, "x", failing(), replace=True)
    assert not session.column("x").values.any()
    assert write_column(session, "x", np.ones(ROWS), replace=True).values.all()


def test_a_write_killed_at_any_step_starts_again(session: Session) -> None:
    """It cannot know whether the values are those of the first time; a maker's job is not thrown away."""
    old, new = np.zeros(ROWS), np.ones(ROWS)
    for crash in crashes(lambda: write_column(session, "x", old, replace=True)):
        assert write_column(session, "x", new, replace=True).values.tolist() == new.tolist(), crash
    write_pair(session, share=(0, 2))
    with pytest.raises(errors.ColumnError, match="unfinished job") as caught:
        write_column(session, "values", np.zeros(ROWS))
    assert "replace=True" in str(caught.value.hint)
    assert write_column(session, "values", np.zeros(ROWS), replace=True).values.shape == (ROWS,)


def test_rows_of_no_run_have_no_columns(tmp_path: Path) -> None:
    """Values of the served rows alone would not be those of the file's rows."""
    found = Session.open(write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs WHERE id = 13")))
    with pytest.raises(errors.ColumnError, match="found 7 rows that belong to no run"):
        write_column(found, "x", np.zeros(len(found)))


def test_killed_at_any_step_it_resumes(
    session: Session, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Old values stay until they are removed, and never have new facts beside them."""
    job = with_facts(player="a")
    copy = tmp_path / "copy" / NAME

    def before() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(session.path, copy)
        write_pair(Session.open(copy), with_facts(player="old", shift=9))

    killed_at = []
    every = 1 if os.environ.get("FULL_SWEEP") == "1" else 5
    for crash in crashes(lambda: write_pair(Session.open(copy), job, force=True), before=before, every=every):
        killed_at.append(crash.call)
        found = Session.open(copy)
        for name in ("values", "best"):
            try:
                column = found.column(name)
            except errors.ColumnError as error:
                assert "half-written" in str(error)  # noqa: PT017 - or it is there
            else:
                shift = column.info.facts.get("shift", 0)
                assert column.values.tobytes() == pair_of(range(ROWS), shift)[name].tobytes()
        assert len(found.tokens(slice(None))) == ROWS
        write_pair(found, job, force=True)
        assert content(copy) == undisturbed
        assert not list(copy.glob(".*"))
    assert len(killed_at) > 4 * ROWS / CHUNK / every


def test_shares_are_put_together(session: Session, undisturbed: dict[str, bytes]) -> None:
    made = [write_pair(session, share=(i, 3)) for i in (1, 0, 2)]
    assert [done.status for done in made] == ["waiting", "waiting", "made"]
    assert [done.rows_made for done in made] == [2 * CHUNK, 2 * CHUNK + 2, 2 * CHUNK]
    assert content(session.path) == undisturbed
    assert write_pair(session)[:3] == ("there", ROWS, 0)
    (session.path / "best.json").unlink()
    assert write_pair(session).rows_made == ROWS, "one of two is missing"


def test_the_last_one_publishes_and_the_others_know(session: Session) -> None:
    facts = ColumnInfo("best", "u8", None, ROWS, checksum(session))
    plan = ColumnPlan((facts,), CHUNK)
    with ColumnDraft(session.path, plan, (0, 2)) as last, ColumnDraft(session.path, plan, (1, 2)) as other:
        for chunk in range(plan.chunks):
            (last, other)[chunk % 2].write(chunk, pair_of(plan.rows_of(chunk)))
        with pytest.raises(ValueError, match=r"best is <f8 of shape \(3,\); expected \|u1"):
            other.write(1, {"best": np.zeros(3)})
        assert last.publish() == []
        assert other.publish() == []
    assert session.column("best").values.tolist() == list(range(ROWS))


def test_a_share_is_one_process_s(session: Session) -> None:
    def other(_: int, __: int) -> None:
        for how in ({}, {"columns": with_facts(player="b"), "force": True}):
            with pytest.raises(errors.BusyError, match="share 0/1 of values, best"):
                write_pair(session, **how)
        with pytest.raises(errors.BusyError):
            write_column(session, "values", np.zeros(ROWS), replace=True)

    assert write_pair(session, progress=other).status == "made"


def test_a_chunk_that_was_lost_is_made_again(session: Session, undisturbed: dict[str, bytes]) -> None:
    """A power failure can keep the journal and lose the rows."""
    write_pair(session, share=(0, 2))
    draft = session.path / ".values.partial"
    with (draft / "best.u8.npy").open("r+b") as file:
        file.seek(128 + 2 * CHUNK)
        file.write(b"\xff")
    (draft / "journal.1of2").write_bytes(b"\0" * 32)
    assert write_pair(session, share=(1, 2)).status == "waiting"
    done = write_pair(session, share=(0, 2))
    assert (done.status, done.rows_made) == ("made", CHUNK)
    assert content(session.path) == undisturbed


def test_a_torn_record_counts_for_nothing(session: Session, undisturbed: dict[str, bytes]) -> None:
    def end(done: int, _: int) -> None:
        if done == 2 * CHUNK:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write_pair(session, progress=end)
    with (session.path / ".values.partial/journal.0of1").open("ab") as file:
        file.write(b"torn rec")
    assert write_pair(session).rows_made == ROWS - 2 * CHUNK
    assert content(session.path) == undisturbed


def test_a_disk_that_forgets_is_an_error(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a job without an end."""
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: real(fd, bytes(len(data)) if at > 128 else data, at)
    )
    with pytest.raises(errors.ChecksumError, match="other bytes than were written"):
        write_pair(session)


def test_columns_of_other_facts_are_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(session)
    with pytest.raises(errors.ColumnError, match="column values: player is 'a'; expected 'b'") as caught:
        write_pair(session, with_facts(player="b"))
    assert (caught.value.path, caught.value.hint) == (
        str(session.path / "values.f32.npy"), "Pass --force to replace it."
    )  # fmt: skip
    naming = Naming(session.path, monkeypatch)
    assert write_pair(session, with_facts(player="b", shift=1), force=True).status == "made"
    naming.assert_flushed(*FILES)
    assert session.column("best").info.facts == {"player": "b", "shift": 1}
    assert session.column("best").values[0] == 1


def test_an_overlay_takes_columns_of_other_facts(session: Session, tmp_path: Path) -> None:
    """The session's own columns stay, and the overlay wins."""
    write_pair(session)
    overlaid = Session.open(session.path, columns=tmp_path / "overlay")
    assert write_pair(overlaid, with_facts(player="b", shift=1)).status == "made"
    assert overlaid.column("best").info.facts["player"] == "b"
    assert session.column("best").info.facts["player"] == "a"


def test_an_unfinished_job_of_other_facts(session: Session) -> None:
    write_pair(session, share=(0, 2))
    with pytest.raises(errors.ColumnError, match=r"unfinished job .*: player is 'a'; expected 'b'"):
        write_pair(session, with_facts(player="b"))
    for damaged in (b"{", b'{"columns":"\xff"}', b'{"x":' + b"[" * 50_000):
        (session.path / ".values.partial/plan.json").write_bytes(damaged)
        assert write_pair(session, with_facts(player="b"), share=(0, 2)).status == "waiting"
    with pytest.raises(errors.ColumnError, match=r"unfinished job .*: player is 'b'; expected 'a'"):
        write_pair(session)
    assert write_pair(session, force=True).status == "made"


def test_a_job_resumes_under_another_name_of_its_player(session: Session) -> None:
    write_pair(session, with_facts(player="a", player_sha256="c"), share=(0, 2))
    assert write_pair(session, with_facts(player="b", player_sha256="c"), share=(1, 2)).status == "made"


def test_other_rows_are_refused(session: Session) -> None:
    """Rows that changed, and columns of other rows."""
    write_pair(session)
    facts = json.loads((session.path / "best.json").read_text()) | {"steps_crc32c": 1}
    (session.path / "best.json").write_text(json.dumps(facts))
    with pytest.raises(errors.ColumnError, match=rf"best\.json: made of {ROWS} rows with CRC-32C 1\."):
        write_pair(session)
    steps = session.path / "steps.npy"
    steps.write_bytes(steps.read_bytes()[:-1] + b"\x02")
    with pytest.raises(errors.ChecksumError, match="The manifest says"):
        write_pair(session, force=True)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The session and its columns are on a disk of 4 MB, which another file fills."""
    disk = tmp_path / "disk"
    with tmpfs(disk, 4):
        session = Session.open(write_ours(disk / NAME))
        tokens = session.tokens(slice(None))
        wide = [ColumnInfo("wide", "u8", 50_000)]  # 1 MB

        def make(rows: range) -> dict[str, Any]:
            return {"wide": np.full((len(rows), 50_000), rows.start, "u1")}

        def fill(done: int, _: int) -> None:
            if done == 2 * CHUNK:
                with contextlib.suppress(OSError), (disk / "filler").open("wb", 0) as file:
                    while file.write(bytes(4096)):
                        pass

        with pytest.raises(errors.DiskFullError, match=r"bytes are free\. The columns take 10,000,128"):
            write_columns(session, [ColumnInfo("huge", "u8", 500_000)], make, chunk_rows=CHUNK)
        with pytest.raises(errors.DiskFullError, match="No space"):
            write_columns(session, wide, make, chunk_rows=CHUNK, progress=fill)
        np.testing.assert_array_equal(Session.open(session.path).tokens(slice(None)), tokens)
        assert "wide" not in session.columns
        with pytest.raises(errors.DiskFullError, match="bytes are free"):
            write_columns(session, wide, make)
        (disk / "filler").unlink()
        done = write_columns(session, wide, make)
        assert (done.status, done.rows_made) == ("made", ROWS - 2 * CHUNK)
        assert session.column("wide").values[:, 0].tolist() == [row - row % CHUNK for row in range(ROWS)]
        del session


def test_a_session_without_rows(tmp_path: Path) -> None:
    """A plan of nothing is whole at once."""
    with ColumnDraft(tmp_path, ColumnPlan((ColumnInfo("x", "f32", 4),), 10)) as draft:
        assert draft.publish() == []
    assert np.load(tmp_path / "x.f32.npy").shape == (0, 4)


@pytest.mark.parametrize("from_call", [1, 2, 3])
def test_lost_values_are_not_published(tmp_path: Path, from_call: int) -> None:
    plan = ColumnPlan((ColumnInfo("x", "u16", 4, 1),), 1)
    with ColumnDraft(tmp_path, plan) as draft:
        draft.write(0, {"x": np.full((1, 4), 7, np.uint16)})
        values = tmp_path / ".x.partial/x.u16.npy"
        with unsaid(values, from_call=from_call), pytest.raises(errors.StorageError):
            draft.publish()
        assert draft.publish() == []
    assert np.load(tmp_path / "x.u16.npy").tolist() == [[7] * 4]


def test_every_byte_is_flushed_in_order(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a column of another type is replaced."""
    write_column(session, "x", np.zeros(ROWS, "f4"))
    naming = Naming(session.path, monkeypatch)
    write_column(session, "x", np.zeros(ROWS, "f8"), replace=True)
    naming.assert_flushed("x.f64.npy", "x.json")
