import ast
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from tape2048.base.text import counted
from tape2048.errors import FormatError, NpyError, StorageError, TruncatedError
from tape2048.files import npy
from tape2048.files.npy import open_rows, open_shards, parse_header, rows_header
from tape2048.session.layout import ACTION_STEP_DTYPE, STEP_DTYPE, STEPS_HEADER_BYTES

from ..builders import Spec, header_bytes, memory_below, npy_bytes, rows_of

GOLDEN_HEADER = (
    b"\x93NUMPY\x01\x00\xb6\x00"
    b"{'descr': [('run_id', '<u8'), ('step_idx', '<u4'), ('exps', '|u1', (16,))], "
    b"'fortran_order': False, 'shape': (3,), }" + b" " * 65 + b"\n"
)
DTYPES = (STEP_DTYPE, ACTION_STEP_DTYPE)
LOADS = ("mmap", "ram")


def text(descr: object = None, order: object = False, shape: object = (3,)) -> bytes:
    descr = STEP_DTYPE.descr if descr is None else descr
    return f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}\n".encode()


def session_header(dtype: Any, rows: int) -> bytes:
    return rows_header(dtype, rows, STEPS_HEADER_BYTES)


def parsed(head: bytes) -> Any:
    """What comes of a header: its content, or the error."""
    try:
        return parse_header(head, "x")
    except FormatError as error:
        return type(error), str(error)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.npy"
    path.write_bytes(npy_bytes(rows_of(Spec())))
    return path


class TestSessionHeader:
    def test_golden(self) -> None:
        assert session_header(STEP_DTYPE, 3) == GOLDEN_HEADER
        assert len(GOLDEN_HEADER) == STEPS_HEADER_BYTES == 192

    def test_numpy_and_we_read_it(self) -> None:
        for dtype in DTYPES:
            for count in (0, 1, 10**7, 2**63 - 1):
                header = session_header(dtype, count)
                assert len(header) == STEPS_HEADER_BYTES
                parsed = parse_header(header, "x")
                assert (parsed.dtype, parsed.rows, parsed.data_offset) == (dtype, count, STEPS_HEADER_BYTES)
            rows = np.ones(5, dtype)
            read = np.load(io.BytesIO(session_header(dtype, 5) + rows.tobytes()), allow_pickle=False)
            assert (read.dtype, read.tobytes()) == (dtype, rows.tobytes())

    def test_what_does_not_fit(self) -> None:
        for count in (-1, 2**63):
            with pytest.raises(ValueError, match="rows"):
                session_header(STEP_DTYPE, count)
        with pytest.raises(ValueError, match="header text"):
            session_header(np.dtype([(f"field_{i}", "u1") for i in range(20)]), 1)


class TestParseHeader:
    def test_versions(self) -> None:
        for version in ((1, 0), (2, 0), (3, 0)):
            head = header_bytes(text(), version=version)
            assert parse_header(head, "x") == parse_header(head + b"rows", "x")
            assert parse_header(head, "x").data_offset == len(head)
        for version in ((0, 0), (1, 1), (4, 0), (255, 255)):
            with pytest.raises(NpyError, match="version") as caught:
                parse_header(header_bytes(text(), version=version), "x")
            assert caught.value.offset == 6

    def test_headers_of_python_2(self) -> None:
        """Numbers end with an L; names that do stay as they are."""
        plain = text([("1L", "<u8"), ("exps", "u1", (16,))], shape=(47153,))
        long = plain.replace(b"47153", b"47153L").replace(b"(16,)", b"(16L,)")
        found, expected = (parse_header(header_bytes(one), "x") for one in (long, plain))
        assert (found.dtype, found.rows) == (expected.dtype, 47153)
        assert found.dtype.names == ("1L", "exps")

    def test_type_spelled_as_other_languages_do(self) -> None:
        spelled = [("run_id", "u8"), ("step_idx", "<u4"), ("exps", "u1", 16)]
        assert parse_header(header_bytes(text(spelled)), "x").dtype == STEP_DTYPE

    def test_not_npy(self) -> None:
        for head in (b"PK\x03\x04", b"\x93NUMPX\x01\x00", b"\x92", b"SQLite format 3\x00"):
            with pytest.raises(NpyError, match=r"not a \.npy file"):
                parse_header(head, "x")

    def test_text_too_long_to_parse(self) -> None:
        with pytest.raises(NpyError, match="at most 10000"):
            parse_header(header_bytes(text() + b" " * 10_000, version=(2, 0)), "x")
        with pytest.raises(NpyError, match="4294967295 bytes"):
            parse_header(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "x")

    @pytest.mark.parametrize(
        "bad",
        [b"", b"\n", b"{", b"[]", b"__import__('os').abort()",
         b"{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (3,)}", b"{[]: 1}",
         b"{'descr', 'fortran_order', 'shape'}", b"f'{1}'", b"\x00", b"\xff\xfe", b"-" * 9_000 + b"1",
         b"(" * 9_000, b"[" * 150 + b"]" * 150, b"1+" * 4_000 + b"1", b"not " * 2_000 + b"1",
         b"a." * 4_000 + b"a", b"9" * 9_000, text() + text(), text().replace(b"'shape'", b"'Shape'"),
         text().replace(b"{", b"{'extra': 1, "), text().replace(b"'fortran_order': False, ", b"")],
        ids=lambda bad: ascii(bad[:24]),
    )  # fmt: skip
    @pytest.mark.parametrize("version", [(1, 0), (3, 0)])
    def test_not_the_literal(self, bad: bytes, version: tuple[int, int]) -> None:
        with pytest.raises(NpyError):
            parse_header(header_bytes(bad, version=version), "x")

    def test_other_orders_shapes_and_types(self) -> None:
        orders: tuple[object, ...] = (True, 0, None, "False")
        shapes: tuple[object, ...] = (
            (), (3, -1), (3, True), 3, [3], (-1,), (True,), (3.0,), ("3",), (None,), {3}, "(3,)"
        )  # fmt: skip
        pickled: tuple[object, ...] = (
            "O", "|O", "object", "i4,O", [("run_id", "O")], [("a", [("b", "|O")])], [("a", "O", (2,))]
        )  # fmt: skip
        no_types: tuple[object, ...] = (
            5, (), {"names": ["a"], "formats": ["O"]}, "a5", "f7", "M8[nonsense]", [("a",)],
            [("a", "u1", (1,), 4)], [("a", "u1"), ("a", "u1")], [("a", "u1", (-1,))], [("a", "u1", "x")],
            [("a", "<u8", (10**9, 10**9))], [("a", "<u8", 10**40)], [b"a"],
        )  # fmt: skip
        cases = [
            *((text(order=order), "fortran_order") for order in orders),
            *((text(shape=shape), "shape") for shape in shapes),
            *((text(descr), "pickled") for descr in pickled),
            *((text(descr), "descr") for descr in no_types),
        ]
        for content, message in cases:
            with pytest.raises(NpyError, match=message):
                parse_header(header_bytes(content), "x")

    @pytest.mark.parametrize("bad", [b"(3if 3else 4,)", b"(0x3for,)", b"('\\d',)"])
    def test_nothing_that_python_warns_of_is_parsed(
        self, bad: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ast.parse", None)  # which would print the warning
        with pytest.raises(NpyError, match="cannot be parsed"):
            parse_header(header_bytes(text().replace(b"(3,)", bad)), "x")

    def test_nothing_that_numpy_warns_of_is_parsed(self) -> None:
        """An indented last line, which NumPy takes for a file of Python 2."""
        with pytest.raises(NpyError, match="cannot be parsed"):
            parse_header(header_bytes(text() + b"\n "), "x")

    def test_number_too_long_to_print(self) -> None:
        bad = text().replace(b"(3,)", b"(0x" + b"f" * 9_000 + b",)")
        with pytest.raises(NpyError, match="cannot be parsed"):
            parse_header(header_bytes(bad), "x")

    @example(noise=b"03,), }", at=GOLDEN_HEADER.index(b"3,)"), cut=7)  # no count begins with 0
    @example(noise=b"\xc3", at=GOLDEN_HEADER.index(b"run_id"), cut=1)
    @given(noise=st.binary(max_size=2), at=st.integers(0, len(GOLDEN_HEADER) - 1), cut=st.integers(0, 8))
    def test_the_short_way_is_the_long_one(self, noise: bytes, at: int, cut: int) -> None:
        head = GOLDEN_HEADER[:at] + noise + GOLDEN_HEADER[at + cut :]
        with pytest.MonkeyPatch.context() as patch:
            short = parsed(head)
            patch.setattr(npy, "_USUAL_TEXT", re.compile(rb"(?!)"))
            assert short == parsed(head)

    @given(st.binary(max_size=60), st.integers(0, 200))
    def test_noise_in_the_text(self, noise: bytes, at: int) -> None:
        good = text()
        try:
            header = parse_header(header_bytes(good[:at] + noise + good[at + len(noise) :]), "x")
        except FormatError:
            return
        assert header.rows >= 0


class TestOpenRows:
    @pytest.mark.parametrize("load", LOADS)
    def test_reads_what_was_written(self, file: Path, load: Any) -> None:
        rows = open_rows(file, DTYPES, load)
        assert (rows.dtype, rows.tobytes()) == (STEP_DTYPE, rows_of(Spec()).tobytes())
        with pytest.raises(ValueError, match="read-only"):
            rows["step_idx"][0] = 1
        file.unlink()
        file.write_bytes(session_header(STEP_DTYPE, 0))
        assert open_rows(file, DTYPES, load).shape == (0,)

    @pytest.mark.parametrize("load", LOADS)
    def test_truncated_at_every_byte(self, file: Path, load: Any) -> None:
        whole = file.read_bytes()
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            with pytest.raises(TruncatedError) as caught:
                open_rows(file, DTYPES, load)
            assert caught.value.offset == length

    def test_truncation_says_both_counts(self, file: Path) -> None:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) - 28 - 27])
        with pytest.raises(TruncatedError, match=r"claims 20 rows .* ends after 18 whole rows"):
            open_rows(file, DTYPES)

    def test_trailing_bytes(self, file: Path) -> None:
        whole = file.read_bytes()
        for extra in (1, 28, 4096):
            file.write_bytes(whole + bytes(extra))
            with pytest.raises(FormatError, match=f"The file has {counted(extra, 'byte')} more") as caught:
                open_rows(file, DTYPES)
            assert caught.value.offset == len(whole)

    @pytest.mark.parametrize("load", LOADS)
    def test_absurd_count_allocates_nothing(self, file: Path, load: Any) -> None:
        for rows in (2**31, 2**40, 2**63, 2**64, 10**60):
            file.write_bytes(header_bytes(text(shape=(rows,)), pad=True) + bytes(280))
            with memory_below(1_000_000), pytest.raises(TruncatedError, match=str(rows)):
                open_rows(file, DTYPES, load)

    def test_other_row_types(self, file: Path) -> None:
        """The error names both; aligned rows are of another type, too."""
        types = ([("run_id", ">u8"), *STEP_DTYPE.descr[1:]], np.dtype(ACTION_STEP_DTYPE.descr, align=True))
        for dtype, match in zip(types, (r"'>u8'.*expected .*'<u8'.* or .*action", "expected"), strict=True):
            np.save(file, np.zeros(3, dtype))
            with pytest.raises(NpyError, match=match):
                open_rows(file, DTYPES)
        np.save(file, np.array([print, len], dtype=object), allow_pickle=True)
        with pytest.raises(NpyError):
            open_rows(file, DTYPES)

    def test_every_flipped_header_bit(self, tmp_path: Path) -> None:
        """A flip may pass where the text still says the same: a space that became a tab, say."""
        rows = rows_of(Spec())
        path = tmp_path / "steps.npy"
        whole = session_header(STEP_DTYPE, len(rows)) + rows.tobytes()
        passed = set()
        for at in range(STEPS_HEADER_BYTES):
            for bit in range(8):
                changed = bytearray(whole)
                changed[at] ^= 1 << bit
                path.write_bytes(changed)
                try:
                    read = open_rows(path, DTYPES)
                except FormatError:
                    continue
                assert read.dtype == STEP_DTYPE
                assert read.tobytes() == rows.tobytes()
                assert ast.literal_eval(changed[10:STEPS_HEADER_BYTES].decode("latin-1"))["shape"] == (20,)
                passed.add(at)
        # None of what says something: magic, version, length, and the words of the text.
        assert all(whole[at : at + 1] in b" \n(),|<'" for at in passed)

    @given(st.data())
    def test_any_bytes_are_an_error_or_the_same_rows(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        rows = rows_of(Spec())
        path = tmp_path_factory.getbasetemp() / "any.npy"
        whole = bytearray(session_header(STEP_DTYPE, len(rows)) + rows.tobytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, STEPS_HEADER_BYTES - 1))
            whole[at] = data.draw(st.integers(0, 255))
        path.write_bytes(whole)
        try:
            read = open_rows(path, DTYPES)
        except FormatError:
            return
        assert read.tobytes() == rows.tobytes()

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="No such file"):
            open_rows(tmp_path / "none.npy", DTYPES)


class TestOpenShards:
    def write(self, tmp_path: Path, *parts: np.ndarray[Any, Any]) -> list[str | os.PathLike[str]]:
        paths: list[str | os.PathLike[str]] = []
        for number, part in enumerate(parts):
            path = tmp_path / f"{number}.npy"
            path.write_bytes(npy_bytes(part))
            paths.append(path)
        return paths

    def test_in_the_order_given(self, tmp_path: Path) -> None:
        rows = rows_of(Spec())
        paths = self.write(tmp_path, rows[:3], rows[3:3], rows[3:])
        for load in ("ram", "mmap"):
            shards = open_shards(paths, DTYPES, load)
            assert shards.counts.tolist() == [3, 0, 17]
            places = np.repeat(shards.begins, shards.counts)
            places += np.array([0, 1, 2, *range(17)])
            assert shards.rows[places].tobytes() == rows.tobytes()
        joined = open_shards(paths, DTYPES).rows
        assert joined.tobytes() == rows.tobytes()
        assert not joined.flags.writeable

    def test_one_row_type(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path, np.zeros(2, STEP_DTYPE), np.zeros(2, ACTION_STEP_DTYPE))
        with pytest.raises(NpyError) as caught:
            open_shards(paths, DTYPES)
        assert caught.value.path == str(paths[1])
