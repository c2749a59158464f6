import json
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from tape2048 import Session, errors, sessions
from tape2048.session.directory import kind_of_directory
from tape2048.session.layout import ACTION_STEP_DTYPE, RUN_DTYPE, STEP_DTYPE

from ..builders import (
    GAMES,
    NAME,
    Game,
    Spec,
    change_database,
    rows_of,
    write_foreign,
    write_manifest,
    write_ours,
)

ROWS = sum(game.steps for game in GAMES)
STARTS = np.cumsum([0, *(game.steps for game in GAMES)])
OWNERS = np.repeat(np.arange(len(GAMES)), [game.steps for game in GAMES])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_ours(tmp_path / NAME)


@pytest.fixture
def session(path: Path) -> Session:
    return Session.open(path)


class TestOpen:
    def test_golden_bytes(self, tmp_path: Path) -> None:
        """A session of one game of two steps, its rows spelled out byte by byte."""
        path = write_ours(tmp_path / NAME, Spec(games=[Game(258, 2, 2, seed=1)], manifest=False))
        row = struct.pack("<QI", 258, 0) + bytes([1, 1] + [0, 1] * 7)
        next_row = struct.pack("<QI", 258, 1) + bytes([1, 0] + [1, 0] * 7)
        text = b"{'descr': [('run_id', '<u8'), ('step_idx', '<u4'), ('exps', '|u1', (16,))], "
        text += b"'fortran_order': False, 'shape': (2,), }" + b" " * 65 + b"\n"
        (path / "steps.npy").write_bytes(b"\x93NUMPY\x01\x00\xb6\x00" + text + row + next_row)
        session = Session.open(path)
        assert session.steps["run_id"].tolist() == [258, 258]
        assert session.steps["step_idx"].tolist() == [0, 1]
        assert session.tokens([0]).tolist() == [[1, 1] + [0, 1] * 7]
        assert session.tokens([1]).tolist() == [[1, 0] + [1, 0] * 7]
        assert session.runs.tolist() == [(258, 1, 0, 2, 2, 100, 2)]

    @pytest.mark.parametrize("load", ["mmap", "ram"])
    @pytest.mark.parametrize("action", [False, True])
    def test_whole(self, tmp_path: Path, load: Any, action: bool) -> None:
        path = write_ours(tmp_path / NAME, Spec(action=action))
        session = Session.open(path, load=load)
        assert session.path == path
        assert session.name == NAME
        assert session.load == load
        assert session.steps.dtype == (ACTION_STEP_DTYPE if action else STEP_DTYPE)
        assert session.steps.tobytes() == rows_of(Spec(action=action)).tobytes()
        assert session.runs.dtype == RUN_DTYPE
        assert session.runs["run_id"].tolist() == [11, 12, 13, 15, 14]  # by first row, not by id
        assert session.runs["first_row"].tolist() == STARTS[:-1].tolist()
        assert session.runs["seed"].tolist() == [game.seed for game in GAMES]
        assert session.blocks["rows"].sum() == ROWS
        assert session.meta == {"rows": ROWS, "runs": 5, "sample_rate": 1, "engine": "toy"}
        assert session.manifest is not None
        assert session.contiguous
        assert len(session) == ROWS
        assert not session.steps.flags.writeable
        assert not session.runs.flags.writeable
        assert repr(session) == f"<Session {NAME}: 20 rows, 5 runs, {load}>"

    def test_no_rows_and_no_runs(self, tmp_path: Path) -> None:
        session = Session.open(write_ours(tmp_path / NAME, Spec(games=[])))
        assert len(session) == len(session.runs) == 0
        assert session.labels().shape == (0, 3)
        assert session.tokens(slice(None)).shape == session.tokens([]).shape == (0, 16)
        assert session.run_index(slice(None)).shape == (0,)

    def test_sampled_and_without_manifest(self, tmp_path: Path) -> None:
        session = Session.open(write_ours(tmp_path / NAME, Spec(sample_rate=3, manifest=False)))
        assert session.manifest is None
        assert session.runs["rows"].tolist() == [2, 1, 3, 1, 2]
        assert session.runs["steps"].tolist() == [5, 1, 7, 3, 4]

    def test_relative_path(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(path)
        assert Session.open(".").name == NAME

    def test_pickled_by_path(self, path: Path) -> None:
        session = Session.open(path, load="ram")
        sent = pickle.dumps(session)
        assert len(sent) < 300
        again = pickle.loads(sent)  # noqa: S301  (our own bytes)
        assert again.load == "ram"
        assert again.steps.tobytes() == session.steps.tobytes()

    def test_unknown_load(self, path: Path) -> None:
        with pytest.raises(ValueError, match="'disk'"):
            Session.open(path, load="disk")  # type: ignore[arg-type]
        theirs = write_foreign(path.parent / "shards", shard_rows=5)
        with pytest.raises(ValueError, match="'disk'"):
            Session.open(theirs, load="disk")  # type: ignore[arg-type]


class TestNotASession:
    def test_paths(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for wrong, kind, message in (
            (tmp_path / "none", errors.MissingPathError, "no such file"),
            (tmp_path / ("x" * 300), errors.StorageError, "too long"),
            (path / "steps.npy", errors.NotASessionError, "not a directory"),
        ):
            with pytest.raises(kind, match=message):
                Session.open(wrong)
        for name in (".20250102T030405Z_model=toy.partial", ".x"):
            path = path.rename(path.parent / name)
            monkeypatch.chdir(path)
            for hidden in (path, "."):
                with pytest.raises(errors.NotASessionError, match="still being written"):
                    Session.open(hidden)

    def test_files(self, path: Path) -> None:
        shutil.copy(path / "steps.npy", path / "steps-000001.npy")
        with pytest.raises(errors.NotASessionError, match="expected only one of them"):
            Session.open(path)
        (path / "steps-000001.npy").unlink()
        for name in ("steps.npy", "metadata.db"):
            (path / name).unlink()
            with pytest.raises(errors.NotASessionError, match=f"no {name}"):
                Session.open(path)


class TestManifest:
    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"version": 1}', b"[" * 50_000, b'{"x":' * 50_000]
    )
    def test_malformed(self, path: Path, content: bytes) -> None:
        (path / "manifest.json").write_bytes(content)
        with pytest.raises(errors.ManifestError, match="malformed"):
            Session.open(path)

    def test_too_large_or_a_dangling_link(self, path: Path) -> None:
        with (path / "manifest.json").open("ab") as file:
            file.write(b" " * 2**20)
        with pytest.raises(errors.ManifestError, match="at most 1048576"):
            Session.open(path)
        (path / "manifest.json").unlink()
        (path / "manifest.json").symlink_to("nowhere")
        with pytest.raises(errors.StorageError):
            Session.open(path)

    @pytest.mark.parametrize(
        ("changes", "files", "message"),
        [
            ({"version": 2}, {}, "version 2; expected 1"),
            ({"rows": 21}, {}, "rows is 21. The session has 20"),
            ({"runs": 4}, {}, "runs is 4. The session has 5"),
            ({"files": {}}, {}, "metadata.db is not listed"),
            ({}, {"steps.npy": 1}, r"steps\.npy has \d+ bytes. The manifest says 1"),
            ({}, {"other": 1}, "lists other, which is missing"),
            *(
                ({}, {name: 1}, "not a valid file name")
                for name in ("../x", "/etc/passwd", "", ".", "..", "a/b", "a\0", "x" * 256, "é" * 128)
            ),
        ],
        ids=str,
    )
    def test_disagrees(
        self, path: Path, changes: dict[str, Any], files: dict[str, int], message: str
    ) -> None:
        listed = json.loads((path / "manifest.json").read_text())["files"]
        listed |= {name: {"bytes": size, "crc32c": 0} for name, size in files.items()}
        write_manifest(path, **({"rows": ROWS, "runs": 5, "files": listed} | changes))
        kind = errors.VersionError if "version" in changes else errors.ManifestError
        with pytest.raises(kind, match=message) as caught:
            Session.open(path)
        assert files or caught.value.path == str(path / "manifest.json")


class TestBookkeeping:
    @pytest.mark.parametrize(
        ("sql", "message"),
        [
            ("UPDATE runs SET rows = 4 WHERE id = 11", "run 12 starts at row 5. .* end at row 4"),
            ("UPDATE runs SET rows = 6 WHERE id = 11", "run 12 starts at row 5. .* end at row 6"),
            ("UPDATE runs SET rows = 5 WHERE id = 14", "21 rows together. The steps have 20"),
            ("UPDATE runs SET first_row = 1 WHERE id = 11", "run 11 starts at row 1. .* end at row 0"),
            ("UPDATE runs SET first_row = 9223372036854775807 WHERE id = 14", "run 14 starts at row"),
            ("DELETE FROM runs WHERE id = 13", "run 15 starts at row 13"),
            ("DELETE FROM runs WHERE id = 14", "16 rows together. The steps have 20"),
            ("DELETE FROM runs", "0 rows together. The steps have 20"),
            ("INSERT INTO runs VALUES (16, 0, 4, 0, 2, 16, 4)", "run .* starts at row 16. .* end at row 20"),
        ],
        ids=lambda value: value,
    )
    def test_runs_tile_the_rows(self, tmp_path: Path, sql: str, message: str) -> None:
        path = write_ours(tmp_path / NAME, Spec(sql=sql, manifest=False))
        with pytest.raises(errors.BookkeepingError, match=message) as caught:
            Session.open(path)
        assert caught.value.path == str(path / "metadata.db")

    def test_run_without_rows_takes_no_place(self, tmp_path: Path) -> None:
        sql = "INSERT INTO runs VALUES (16, 0, 0, 0, 2, 5, 0), (17, 0, 0, 0, 2, 20, 0)"
        session = Session.open(write_ours(tmp_path / NAME, Spec(sql=sql, manifest=False)))
        assert session.runs["run_id"].tolist() == [11, 16, 12, 13, 15, 14, 17]
        assert session.numbers_of(1) == slice(5, 5)
        assert session.run_index([4, 5, 19]).tolist() == [0, 2, 5]

    @pytest.mark.parametrize("load", ["mmap", "ram"])
    @pytest.mark.parametrize(
        ("field", "row"), [("run_id", 5), ("run_id", 6), ("run_id", 12), ("step_idx", 6)]
    )
    def test_rows_of_another_session(self, tmp_path: Path, load: Any, field: str, row: int) -> None:
        def change(rows: NDArray[np.void]) -> None:
            rows[field][row] = 99

        path = write_ours(tmp_path / NAME, Spec(change_rows=change))
        with pytest.raises(errors.BookkeepingError, match="belong to run") as caught:
            Session.open(path, load=load)
        assert caught.value.hint is not None

    @pytest.mark.parametrize(("run", "probed"), [(0, True), (3, False), (14, True), (99, True)])
    def test_mapped_rows_are_probed(self, tmp_path: Path, run: int, probed: bool) -> None:
        def change(rows: NDArray[np.void]) -> None:
            rows["run_id"][run] = 100

        games = [Game(number, 1) for number in range(100)]
        path = write_ours(tmp_path / NAME, Spec(games=games, change_rows=change))
        if not probed:
            assert len(Session.open(path)) == 100  # a run between two probed ones: for validate_session
        loads: tuple[Any, ...] = ("ram", "mmap") if probed else ("ram",)
        for load in loads:
            with pytest.raises(errors.BookkeepingError):
                Session.open(path, load=load)

    def test_error_of_each_file_comes_through(self, path: Path) -> None:
        (path / "manifest.json").unlink()
        whole = (path / "steps.npy").read_bytes()
        (path / "steps.npy").write_bytes(whole[:-1])
        with pytest.raises(errors.TruncatedError):
            Session.open(path)
        (path / "steps.npy").write_bytes(whole + b"x")
        with pytest.raises(errors.FormatError):
            Session.open(path)
        np.save(path / "steps.npy", np.zeros(20))
        with pytest.raises(errors.NpyError):
            Session.open(path)
        change_database(path / "metadata.db", "DROP TABLE runs")
        with pytest.raises(errors.SchemaError):
            Session.open(path)
        (path / "metadata.db").write_bytes(b"x" * 5000)
        with pytest.raises(errors.SchemaError):
            Session.open(path)


class TestLabels:
    def test_default(self, session: Session) -> None:
        highest = np.array([game.highest_tile for game in GAMES])
        expected = highest[:, None] >= np.array([8192, 16384, 32768])
        np.testing.assert_array_equal(session.run_labels(), expected)
        np.testing.assert_array_equal(session.labels(), expected[OWNERS])
        assert session.labels().dtype == np.bool_
        assert session.labels().flags.c_contiguous

    @pytest.mark.parametrize(
        "thresholds", [[2], (4096,), np.array([2048, 2], np.uint16), (2**i for i in (1, 2))]
    )
    def test_thresholds(self, session: Session, thresholds: Any) -> None:
        tiles = list(thresholds)
        expected = np.array([[game.highest_tile >= tile for tile in tiles] for game in GAMES])
        np.testing.assert_array_equal(session.labels(tiles), expected[OWNERS])

    def test_no_tiles(self, session: Session) -> None:
        wrong: Any
        for wrong in (
            [], np.array([], np.int64), 8192, [0], [1], [-8192], [3000], [8192.0], ["8192"], [[8192]],
            [8192, 8192], [True], [2**63], [2**70], None,
        ):  # fmt: skip
            for labels in (session.labels, session.run_labels):
                with pytest.raises(ValueError, match="powers of two"):
                    labels(wrong)


class TestRows:
    @pytest.mark.parametrize("action", [False, True])
    @pytest.mark.parametrize(
        "rows",
        [slice(None), slice(3, 9), slice(3, 4), slice(-3, None), slice(None, None, -2), slice(9, 3),
         slice(5, 100), [], [0], [19, 0, 0, 7], np.array([4, 5], np.uint8), np.array([19], np.uint64),
         np.array([4, 5], ">i4"), np.arange(40)[::4], np.arange(20) % 3 == 0, np.zeros(20, bool)],
        ids=lambda rows: str(rows).replace(" ", "") if not isinstance(rows, slice) else repr(rows),
    )  # fmt: skip
    def test_tokens_and_run_index(self, tmp_path: Path, rows: Any, action: bool) -> None:
        if isinstance(rows, np.ndarray) and rows.max(initial=0) > 19:
            rows = rows[rows < 20]
        session = Session.open(write_ours(tmp_path / NAME, Spec(action=action)))
        index = rows if isinstance(rows, slice) else np.asarray(rows, None if len(rows) else np.int64)
        tokens = session.tokens(rows)
        np.testing.assert_array_equal(tokens, rows_of(Spec())["exps"][index])
        assert tokens.dtype == np.uint8
        assert tokens.flags.c_contiguous
        assert tokens.flags.writeable
        np.testing.assert_array_equal(session.run_index(rows), OWNERS[index])

    def test_outside_or_no_rows(self, session: Session) -> None:
        wrong: Any
        for wrong in (
            [20], [-1], [0, 5, -1], [2**40], np.array([2**64 - 1], np.uint64), np.ones(19, bool),
            np.ones(21, bool),
        ):  # fmt: skip
            with pytest.raises(IndexError, match=r"expected 0 <= row < 20|expected 20, one for each row"):
                session.tokens(wrong)
            with pytest.raises(IndexError):
                session.run_index(wrong)
        for wrong in (3, [1.0], ["1"], [[1]], [[]], None, [None], np.ones((20, 1), bool), np.array(2)):
            with pytest.raises(TypeError, match="expected row numbers or a mask"):
                session.tokens(wrong)

    def test_rows_of(self, session: Session) -> None:
        for run in range(5):
            assert session.numbers_of(run) == slice(STARTS[run], STARTS[run + 1])
        for run in (-1, 5):
            with pytest.raises(IndexError, match="expected 0 <= ordinal < 5"):
                session.numbers_of(run)
        assert session.numbers_of(np.int64(2)) == session.numbers_of(2)  # type: ignore[arg-type]
        no_number: Any
        for no_number in (1.0, "a", None, np.array([1])):
            with pytest.raises(TypeError, match=r"run ordinal .*; expected a whole number"):
                session.numbers_of(no_number)

    @given(data=st.data())
    def test_any_slice(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        path = tmp_path_factory.getbasetemp() / "any" / NAME
        session = Session.open(path if path.exists() else write_ours(path))
        rows = data.draw(st.slices(ROWS))
        np.testing.assert_array_equal(session.run_index(rows), OWNERS[rows])


class TestSessions:
    def test_lists_finished_sessions_by_name(self, tmp_path: Path) -> None:
        assert sessions(tmp_path) == []
        names = [
            "20250102T030405Z_model=b", "20250102T030405Z_model=a-2", "20240102T030405Z_model=z", "any-name",
        ]  # fmt: skip
        for name in names:
            write_ours(tmp_path / name)
        write_foreign(tmp_path / "shards", shard_rows=7)
        write_ours(tmp_path / ".20250102T030405Z_model=c.partial")
        (tmp_path / "20250102T030405Z_model=file").write_bytes(b"")
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / names[0])
        (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        expected = sorted([*names, "shards", "link"])
        assert sessions(tmp_path) == [tmp_path / name for name in expected]
        assert sessions(str(tmp_path))[0] == tmp_path / expected[0]
        for found in sessions(tmp_path):
            Session.open(found)

    def test_a_damaged_session_is_listed(self, tmp_path: Path) -> None:
        (tmp_path / NAME).mkdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "metadata.db").write_bytes(b"")
        (tmp_path / "part").mkdir()
        (tmp_path / "part" / "steps-000001.npy").write_bytes(b"")
        assert sessions(tmp_path) == [tmp_path / name for name in (NAME, "other", "part")]
        for found in sessions(tmp_path):
            with pytest.raises(errors.NotASessionError):
                Session.open(found)

    def test_a_directory_that_vanishes_is_skipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("goes", "stays"):
            write_ours(tmp_path / name)
        real = Path.iterdir

        def look(path: Path) -> Iterator[Path]:
            if path.name == "goes":
                shutil.rmtree(path)
            return real(path)

        monkeypatch.setattr(Path, "iterdir", look)
        assert sessions(tmp_path) == [tmp_path / "stays"]

    def test_missing_root(self, tmp_path: Path) -> None:
        with pytest.raises(errors.MissingPathError):
            sessions(tmp_path / "none")
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(errors.StorageError):
            sessions(tmp_path / "file")


def test_what_a_directory_is_as_a_whole(path: Path, tmp_path: Path) -> None:
    assert kind_of_directory(path) == "a session"
    assert kind_of_directory(write_foreign(tmp_path / "shards", shard_rows=5)) == "a session"
    for name, files, kind in (
        ("cut", ["metadata.db"], "a session"),
        ("set", ["metadata.db", "shards"], "a data set"),
        ("pack", ["pack.dat", ".cache"], "the directory of a pack"),
        ("beside", ["pack.dat", "selfplay"], None),
        ("packs", ["a.a2pack", "b.a2pack"], None),
        ("empty", [], None),
    ):
        (tmp_path / "all" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "all" / name / file).touch()
        assert kind_of_directory(tmp_path / "all" / name) == kind
    assert kind_of_directory(tmp_path / "all") is None
    assert kind_of_directory(tmp_path / "absent") is None
    assert kind_of_directory(path / "steps.npy") is None
