"""Sessions on tape read as the same games do from ``steps.npy``, and damaged ones are refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048.errors import (
    BookkeepingError,
    ColumnError,
    FieldError,
    FormatError,
    ManifestError,
    NotASessionError,
    NpyError,
    ReplayError,
    SchemaError,
    TapeError,
    TruncatedError,
)
from tape2048.files.npy import Load
from tape2048.runs.sessions import session_run
from tape2048.session.directory import kind_of_directory
from tape2048.session.session import Session, sessions

from ..builders import NAME, change_database, embed, npy_bytes, write_manifest
from ..tapes import as_rows, games_on_tape, plain_npy, write_tape

GAMES = games_on_tape(3, 1, 4, 15, 9, 2, 6)
ROWS = len(GAMES.tape)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tape(tmp_path_factory.mktemp("tape") / NAME, GAMES)


@pytest.fixture
def own(path: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(path, tmp_path / NAME))


def seal(directory: Path, **changes: object) -> None:
    """Write a manifest that fits the changed files."""
    write_manifest(directory, rows=ROWS, runs=len(GAMES.runs), **changes)


def put(path: Path, at: int, values: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(values)] = values
    path.write_bytes(data)


class TestReading:
    @pytest.mark.parametrize("load", ["mmap", "ram"])
    @pytest.mark.parametrize("record_action", [True, False])
    def test_everything_is_as_in_rows(self, tmp_path: Path, load: Load, record_action: bool) -> None:
        due = as_rows(GAMES)  # with the action, which a tape has in any case
        session = Session.open(write_tape(tmp_path / NAME, GAMES, record_action=record_action), load)
        assert len(session) == len(due)
        assert session.dtype == due.dtype
        assert (session.runs == GAMES.runs).all()
        assert session.contiguous
        assert session.load == load
        assert (session.tokens(slice(None)) == due["exps"]).all()
        assert (session.moves(slice(None)) == GAMES.moves).all()
        assert (session.read_rows(0, ROWS) == due).all()
        assert (session.labels([64, 256]) == (GAMES.runs["highest_tile"][:, None] >= [64, 256])[
            session.run_index(slice(None))
        ]).all()  # fmt: skip
        assert (session.steps == due).all()
        assert session.steps is session.steps
        assert not session.steps.flags.writeable

    @given(st.data())
    def test_any_selection(self, path: Path, data: st.DataObject) -> None:
        session, due = Session.open(path), as_rows(GAMES)
        bounds = st.none() | st.integers(-ROWS - 2, ROWS + 2)
        steps = st.none() | st.integers(-7, 7).filter(bool)
        rows: Any = data.draw(
            st.builds(slice, bounds, bounds, steps)
            | st.lists(st.integers(0, ROWS - 1), max_size=9)
            | st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.array)
        )
        assert (session[rows] == due[rows]).all()
        assert (session.tokens(rows) == due["exps"][rows]).all()
        assert (session.moves(rows) == due["action"][rows]).all()

    @pytest.mark.parametrize("anchor_rows", [1, 2, 64, 4096])
    def test_any_distance_of_anchors(self, tmp_path: Path, anchor_rows: int) -> None:
        session = Session.open(write_tape(tmp_path / NAME, GAMES, anchor_rows=anchor_rows))
        due = as_rows(GAMES)
        assert (session[np.arange(ROWS)[::-1]] == due[::-1]).all()
        for first in range(0, ROWS, 37):
            assert (session.read_rows(first, ROWS) == due[first:]).all()

    def test_ranges_outside_are_refused(self, path: Path) -> None:
        session = Session.open(path)
        for first, end in ((-1, 3), (5, 4), (0, ROWS + 1)):
            with pytest.raises(IndexError):
                session.read_rows(first, end)
        with pytest.raises(IndexError):
            session.tokens([ROWS])

    def test_a_run_table_in_another_order(self, tmp_path: Path) -> None:
        runs = GAMES.runs.copy()
        runs["run_id"] = runs["run_id"][::-1]  # SQLite's order is that of the ids
        games = GAMES._replace(runs=runs)
        session = Session.open(write_tape(tmp_path / NAME, games))
        assert (session.runs == runs).all()
        assert (session[np.arange(ROWS)] == as_rows(games)).all()

    def test_a_session_of_no_games(self, tmp_path: Path) -> None:
        session = Session.open(write_tape(tmp_path / NAME, games_on_tape()))
        assert (len(session), len(session.steps), len(session.runs)) == (0, 0, 0)

    def test_it_is_listed_and_named(self, path: Path) -> None:
        assert sessions(path.parent) == [path]
        assert kind_of_directory(path) == "a session"

    def test_its_runs_are_whole_and_certain(self, path: Path) -> None:
        session = Session.open(path)
        for ordinal, first in enumerate(GAMES.runs["first_row"].tolist()):
            run, certain, lost = session_run(session, ordinal)
            end = first + len(run)
            assert (certain, lost) == (True, ())
            assert (run.boards == GAMES.boards[first:end]).all()
            assert (run.moves == GAMES.moves[first:end]).all()
            assert run.final_board == GAMES.finals[ordinal]
            assert run.meta.max_score == GAMES.runs["score"][ordinal]

    def test_embeddings_belong_to_the_tape(self, own: Path) -> None:
        crc = json.loads((own / "manifest.json").read_text())["files"]["tape.npy"]["crc32c"]
        embed(own, np.zeros((ROWS, 3)))
        assert Session.open(own).column("embeddings").values.shape == (ROWS, 3)
        embed(own, np.zeros((ROWS, 3)), steps_crc32c=crc ^ 1)
        with pytest.raises(ColumnError, match=f"with CRC-32C {crc ^ 1}"):
            Session.open(own).column("embeddings")


class TestDamage:
    """Nothing that the files say is trusted: each defect is named, and nothing is read outside of them."""

    @pytest.mark.parametrize("name", ["tape.npy", "anchors.npy"])
    def test_truncated_at_every_offset(self, tmp_path: Path, name: str) -> None:
        own = write_tape(tmp_path / NAME, games_on_tape(15))
        rows = len(np.load(own / "tape.npy"))
        content = (own / name).read_bytes()
        for size in range(len(content)):
            (own / name).write_bytes(content[:size])
            write_manifest(own, rows=rows, runs=1)  # says the same
            with pytest.raises(TruncatedError) as caught:
                Session.open(own)
            assert caught.value.path == str(own / name)

    @pytest.mark.parametrize("name", ["tape.npy", "anchors.npy"])
    def test_a_header_of_another_length_or_type(self, own: Path, name: str) -> None:
        path = own / name
        values = np.load(path)
        for kind, descr, claimed in (
            *((FormatError, values.dtype.str, n) for n in (0, len(values) - 1, len(values) + 1, 10**17)),
            *((NpyError, descr, len(values)) for descr in ("|i1", "<i8", "<f8")),
        ):
            path.write_bytes(plain_npy(descr, values.astype(descr), claimed))
            seal(own)
            with pytest.raises(kind) as caught:
                Session.open(own)
            assert caught.value.path == str(path)

    def test_anchors_of_another_tape(self, own: Path) -> None:
        anchors = np.load(own / "anchors.npy")
        for count in (0, len(anchors) - 1, len(anchors) + 1):
            (own / "anchors.npy").write_bytes(plain_npy("<u8", np.resize(anchors, count)))
            seal(own)
            message = f"found {count} anchors for {ROWS} rows, expected {len(anchors)}"
            with pytest.raises(FormatError, match=message):
                Session.open(own)

    def test_anchors_that_are_not_aligned(self, own: Path) -> None:
        text = f"{{'descr': '<u8', 'fortran_order': False, 'shape': ({-(-ROWS // 16)},), }}".encode()
        head = b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"
        head = head[:-1] + b" " * ((4 - len(head)) % 8) + b"\n"
        head = head[:8] + (len(head) - 10).to_bytes(2, "little") + head[10:]
        (own / "anchors.npy").write_bytes(head + np.load(own / "anchors.npy").tobytes())
        seal(own)
        with pytest.raises(NpyError, match="to align the anchors"):
            Session.open(own)

    def test_an_impossible_distance_of_anchors(self, own: Path) -> None:
        for found in (None, 0, -16, 3, 8192, 2**40):
            seal(own, anchor_rows=found)
            with pytest.raises(ManifestError, match=f"anchor_rows is {found}"):
                Session.open(own)
        seal(own, anchor_rows=32)
        with pytest.raises(FormatError, match=r"anchors for \d+ rows"):
            Session.open(own)

    def test_files_that_are_missing_or_too_many(self, own: Path) -> None:
        seal(own, files={"tape.npy": {"bytes": 128 + ROWS, "crc32c": 0}})
        with pytest.raises(ManifestError, match="is not listed"):
            Session.open(own)
        (own / "manifest.json").unlink()
        with pytest.raises(ManifestError, match=r"without manifest\.json"):
            Session.open(own)
        (own / "steps.npy").write_bytes(npy_bytes(as_rows(GAMES)))
        with pytest.raises(NotASessionError, match=r"found tape\.npy and steps\.npy"):
            Session.open(own)
        (own / "steps.npy").unlink()
        (own / "anchors.npy").unlink()
        with pytest.raises(NotASessionError, match=r"without anchors\.npy"):
            Session.open(own)

    @pytest.mark.parametrize(
        ("sql", "error", "text"),
        [
            ("UPDATE session SET meta_value = '\"rows\"' WHERE meta_key = 'storage'", SchemaError, "'rows'"),
            ("DELETE FROM session WHERE meta_key = 'storage'", SchemaError, "storage is None"),
            ("ALTER TABLE runs DROP COLUMN start_board", SchemaError, "start_board"),
            ("UPDATE runs SET start_board = 'x' WHERE id = 9", SchemaError, "start_board is text"),
            ("UPDATE runs SET start_board = 0 WHERE id = 9", FieldError, "run 9, step 0: start_board is 0x0"),
            ("UPDATE runs SET start_board = 3 WHERE id = 9", FieldError, "run 9"),
            ("UPDATE runs SET start_board = -1 WHERE id = 9", FieldError, "run 9"),
            (
                "UPDATE runs SET start_board = 0x12 WHERE id = 7",
                BookkeepingError,
                "run 7, step 0: the anchor of",
            ),
            ("UPDATE runs SET rows = rows + 1, steps = steps + 1 WHERE id = 9", BookkeepingError, "run 10"),
            ("UPDATE runs SET steps = steps + 1 WHERE id = 9", BookkeepingError, "run 9 has"),
            ("UPDATE runs SET first_row = first_row + 1 WHERE id = 9", BookkeepingError, "run 9 starts"),
            ("UPDATE runs SET rows = 0, steps = 0 WHERE id = 13", BookkeepingError, "run 13 has 0 rows"),
            (
                "UPDATE runs SET rows = 4000000000, steps = 4000000000 WHERE id = 9",
                BookkeepingError,
                "262142",
            ),
            ("DELETE FROM runs WHERE id = 13", ManifestError, "The session has 6"),
        ],
    )
    def test_a_run_table_that_is_not_that_of_the_tape(
        self, own: Path, sql: str, error: type[TapeError], text: str
    ) -> None:
        change_database(own / "metadata.db", sql)
        seal(own)
        with pytest.raises(error, match=text):
            Session.open(own)

    @pytest.mark.parametrize(
        ("change", "error", "text"),
        [
            (lambda byte: byte | 128, FieldError, "has bit 7 set"),
            (lambda byte: byte ^ 0x3C, FormatError, "run 9"),
            (lambda byte: byte ^ 3, FormatError, "run 9"),
        ],
    )
    def test_a_wrong_byte_is_named_by_whoever_reads_it(
        self, own: Path, change: Callable[[int], int], error: type[FormatError], text: str
    ) -> None:
        first = int(GAMES.runs["first_row"][2])
        at = first + 21
        put(own / "tape.npy", 128 + at, bytes([change(int(GAMES.tape[at])) & 255]))
        session = Session.open(own)
        end = first + int(GAMES.runs["rows"][2])
        assert (session.read_rows(0, at) == as_rows(GAMES)[:at]).all()
        assert (session.read_rows(end, ROWS) == as_rows(GAMES)[end:]).all()
        for read in (
            lambda: session.steps,
            lambda: session.read_rows(at - 3, end),
            lambda: session.tokens(np.arange(ROWS)),
        ):
            with pytest.raises(error, match=text) as caught:
                read()
            assert caught.value.path in {str(own / "tape.npy"), str(own / "anchors.npy")}
            assert "run 9, step " in caught.value.message
            assert caught.value.offset is not None

    def test_a_wrong_byte_names_step_and_offset(self, own: Path) -> None:
        at = int(GAMES.runs["first_row"][2]) + 21
        put(own / "tape.npy", 128 + at, b"\xff")
        with pytest.raises(FieldError, match="run 9, step 21: byte 0xff has bit 7 set") as caught:
            Session.open(own).tokens([at + 1])
        assert caught.value.offset == 128 + at
        assert (Session.open(own).tokens([at]) == as_rows(GAMES)["exps"][[at]]).all()

    def test_a_game_on_a_full_board(self, own: Path) -> None:
        last = int(GAMES.runs["first_row"][3]) - 1
        cell = next(c for c in range(16) if GAMES.finals[2] >> np.uint64(60 - 4 * c) & np.uint64(15))
        put(own / "tape.npy", 128 + last, bytes([int(GAMES.moves[last]) | cell << 2]))
        try:
            Session.open(own).read_rows(last, last + 1)  # the last byte is not needed for its own row
        except ReplayError as error:
            assert "run 9" in error.message  # noqa: PT017

    def test_a_wrong_anchor_is_found_by_who_passes_it(self, own: Path) -> None:
        row = 16 * 5
        owner = int(np.searchsorted(GAMES.runs["first_row"], row, "right")) - 1
        put(own / "anchors.npy", 128 + 8 * 5, int(GAMES.boards[row + 1]).to_bytes(8, "little"))
        session = Session.open(own)
        run = GAMES.runs[owner]
        with pytest.raises(BookkeepingError, match="the anchor of row 80 is") as caught:
            session.read_rows(row - 10, row + 1)
        assert f"run {run['run_id']}, step {row - int(run['first_row'])}: " in caught.value.message
        assert (caught.value.path, caught.value.offset) == (str(own / "anchors.npy"), 128 + 8 * 5)

    def test_the_first_anchor_is_the_first_start(self, own: Path) -> None:
        put(own / "anchors.npy", 128, b"\x21")
        with pytest.raises(BookkeepingError, match="run 7, step 0: the anchor of row 0 is"):
            Session.open(own)
