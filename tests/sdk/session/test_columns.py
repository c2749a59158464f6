"""Columns: read back as written, from the session or an overlay, and rejected where they do not fit."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, Session, errors
from tape2048.loader import FIELDS, Batch
from tape2048.session.columns import COLUMN_DTYPES, check_column_name

from ..builders import NAME, write_foreign, write_ours
from ..tapes import games_on_tape, write_tape

KINDS = {
    "rows": lambda path: write_ours(path / NAME),
    "tape": lambda path: write_tape(path / NAME, games_on_tape(1, 2)),
    "foreign": lambda path: write_foreign(path / NAME),
    "shards": lambda path: write_foreign(path / NAME, shard_rows=7),
}


def checksum(session: Session) -> int | None:
    files = session.manifest.files if session.manifest else {}
    entry = files.get("tape.npy") or files.get("steps.npy")
    return entry.crc32c if entry else None


def put(place: Path, session: Session, name: str, values: Any, dtype: str, /, **facts: Any) -> None:
    """A column by NumPy alone, and facts that fit it, then ``facts``."""
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / f"{name}.{dtype}.npy", values)
    wide = {"D": values.shape[1]} if values.ndim == 2 else {}
    own = {"dtype": dtype, "rows": len(values), **wide, "steps_crc32c": checksum(session), "maker": "a test"}
    (place / f"{name}.json").write_text(json.dumps(own | facts))


def make_values(rows: int, dtype: str, width: int | None) -> Any:
    shape = (rows,) if width is None else (rows, width)
    rng = np.random.default_rng(rows)
    kind = np.dtype(COLUMN_DTYPES[dtype])
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape) if (
        dtype != "bool"
    ) else rng.random(shape) < 0.5  # fmt: skip


def copied(sent: Any) -> Any:
    return pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.open(write_ours(tmp_path / NAME))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [None, 1, 3])
def test_a_column_is_what_was_saved(tmp_path: Path, kind: str, width: int | None) -> None:
    """Each type, in the session and in an overlay, which wins; also in copies of the session and corpora."""
    path, overlay = KINDS[kind](tmp_path / "selfplay"), tmp_path / "columns"
    session = Session.open(path)
    for number, dtype in enumerate(COLUMN_DTYPES):
        values = make_values(len(session), dtype, width)
        put(path, session, dtype, values, dtype, number=number)
        found = session.column(dtype)
        assert found.path == path / f"{dtype}.{dtype}.npy"
        assert found.values.dtype == values.dtype
        assert found.values.tobytes() == values.tobytes()
        assert not found.values.flags.writeable
        assert (found.info.shape, found.info.facts) == (values.shape, {"maker": "a test", "number": number})
    put(overlay / NAME, session, "u8", np.full(len(session), 7, np.uint8), "u8")
    put(overlay / NAME, session, "more", np.full(len(session), 8, np.uint8), "u8")
    assert list(session.columns) == sorted(COLUMN_DTYPES)
    corpus = Corpus.open(path, columns=overlay)
    views = [each.sessions[0] for each in (corpus, corpus.where("run_id >= 0"), copied(corpus))]
    for each in (Session.open(path, columns=overlay), *views, copied(views[0])):
        assert set(each.columns) == {*COLUMN_DTYPES, "more"}
        assert each.column("u8").values.tolist() == [7] * len(session)
        assert each.column("u8").path.parent == overlay / NAME
        assert each.column("f32").path.parent == path


def test_listing_loads_no_compiler(session: Session) -> None:
    put(session.path, session, "loss", np.zeros(len(session), "<f4"), "f32")
    code = (
        "import sys, tape2048; from tape2048 import Session\n"
        "found = Session.open(sys.argv[1])\n"
        "assert found.columns['loss'].shape == found.column('loss').values.shape\n"
        "assert not {'numba', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, session.path], check=True, timeout=60)


def check_rejected(session: Session, file: str, message: str, hint: str = "", name: str = "loss") -> None:
    with pytest.raises(errors.ColumnError, match=message) as caught:
        session.column(name)
    assert Path(caught.value.path or "") == session.path / file
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("facts", "file", "message"),
    [
        ({"rows": 3}, "loss.json", r"made of 3 rows"),
        ({"steps_crc32c": 7}, "loss.json", "with CRC-32C 7"),
        ({"steps_crc32c": None}, "loss.json", "with CRC-32C None"),
        ({"dtype": "f16"}, "loss.json", r"dtype 'f16'; expected the type of the file loss\.f32\.npy"),
        ({"dtype": "<f4"}, "loss.json", "dtype '<f4'; expected one of bool, u8"),
        ({"D": 1}, "loss.f32.npy", r"\('<f4', \(1,\)\)"),
        *(({"D": wrong}, "loss.json", "malformed") for wrong in (0, "5", 2**31 + 1, None, 1.5)),
        *(({"rows": wrong}, "loss.json", "malformed") for wrong in (None, -1, "3")),
        ({"steps_crc32c": "a"}, "loss.json", "malformed"),
        ({"maker": 3}, "loss.json", "malformed"),
    ],
)  # fmt: skip
def test_facts_that_do_not_fit(session: Session, facts: Any, file: str, message: str) -> None:
    put(session.path, session, "loss", np.zeros(len(session), "<f4"), "f32", **facts)
    check_rejected(session, file, message)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"{}", b'{"x":' + b"[" * 50_000])
def test_malformed_facts(session: Session, content: bytes) -> None:
    put(session.path, session, "loss", np.zeros(len(session), "<f4"), "f32")
    (session.path / "loss.json").write_bytes(content)
    check_rejected(session, "loss.json", "malformed")


def test_values_of_another_type_order_or_length(session: Session) -> None:
    rows, file = len(session), "loss.f32.npy"
    put(session.path, session, "loss", np.zeros((rows, 2), "<f4"), "f32")
    values = np.zeros((rows, 2), "<f4")
    more, narrow, flat = np.zeros((rows + 1, 2), "<f4"), values[:, :1], values[:, 0]
    for wrong in (values.astype("<i4"), values.astype(">f4"), np.asfortranarray(values), more, narrow, flat):
        np.save(session.path / file, wrong)
        check_rejected(session, file, r"rows.*[;,] expected|fortran_order is True")
    np.save(session.path / file, np.array([{}] * rows), allow_pickle=True)
    check_rejected(session, file, "pickled")
    np.save(session.path / file, np.zeros((rows, 2), "<f4"))
    whole = (session.path / file).read_bytes()
    for length in [*range(0, 130, 9), len(whole) - 1, len(whole) // 2]:
        (session.path / file).write_bytes(whole[:length])
        check_rejected(session, file, "he file ends after")
    (session.path / file).write_bytes(whole + b"\0")
    check_rejected(session, file, rf"\({len(whole)} bytes\). The file has 1 byte more")
    (session.path / file).write_bytes(whole[:8] + b"\xff" * 10 + whole[18:])
    check_rejected(session, file, "header text of 65535 bytes")


def test_half_written(session: Session) -> None:
    """One of the two files is missing, or there are two of values. The hint names the command."""
    put(session.path, session, "loss", np.zeros(len(session), "<f4"), "f32", maker="tape2048 annotate")
    values = session.path / "loss.f32.npy"
    values.rename(session.path / "loss.f64.npy")
    check_rejected(session, "loss.json", r"expected the type of the file loss\.f64\.npy", "annotate --force")
    (session.path / "loss.f64.npy").unlink()
    check_rejected(session, "loss.f32.npy", "half-written: found loss.json without", "annotate --force")
    (session.path / "loss.json").unlink()
    check_rejected(session, "", "no column 'loss'", "tape2048 annotate")
    values.touch()
    check_rejected(session, "loss.json", r"half-written: found loss\.f32\.npy without", "annotate --force")
    assert "loss" in session.columns
    put(session.path, session, "mine", np.zeros(3), "f64")
    check_rejected(
        session, "mine.json", "made of 3 rows", "write_column(session, 'mine', values, replace=True)", "mine"
    )


def test_names_of_fields_and_attributes_of_batches(session: Session) -> None:
    for field in FIELDS:
        with pytest.raises(ValueError, match=f"column name '{field}' is a built-in field"):
            check_column_name(field)
    for name in (name for name in dir(Batch) if name[0] != "_" and name != "values"):
        with pytest.raises(ValueError, match=f"column name '{name}' is an attribute of batches"):
            check_column_name(name)
    put(session.path, session, "score", np.zeros(len(session), "u4"), "u32")
    check_rejected(session, "score.u32.npy", "'score' is a built-in field", name="score")
    for name in ("../loss", "Loss", "", "1st", "a" * 65, "l\u00f6ss"):
        with pytest.raises(ValueError, match="column name"):
            session.column(name)


def test_other_files_are_no_columns(session: Session) -> None:
    for name in ("notes.json", "Loss.f32.npy", "loss.f4.npy", "l\u00f6ss.f32.npy", "loss.f32.npy.bak"):
        (session.path / name).write_text("{}")
    assert list(session.columns) == []
