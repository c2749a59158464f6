"""No error quotes a file of another kind: a part of a session may be a link to any file of the user."""

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tape2048 import Corpus, Session, validate_session
from tape2048.errors import TapeError
from tape2048.files.npy import parse_header
from tape2048.files.safetensors import decode
from tape2048.runs import DataPack, Dataset, PackReader, open_source, read_run, read_run_file, verify_dataset

from ..builders import write_ours
from ..runs.set_builders import write_dataset

SECRETS = {
    "text": b"root:$6$hunter2$abcdefgh:19000:0:99999:7:::\n" * 400,
    "bytes": bytes(range(129, 256)) * 80,
    "braces": b"{hunter2 hunter2 hunter2" * 400,
}
READERS: dict[str, Callable[[Path], Any]] = {
    "a2pack": PackReader.open,
    "pack.dat": DataPack.load,
    "data set": Dataset,
    "A2T1": read_run,
    "run file": read_run_file,
    "safetensors": lambda path: decode(path.read_bytes(), str(path)),
    ".npy": lambda path: parse_header(path.read_bytes(), path),
    ".npy with its magic": lambda path: parse_header(b"\x93NUMPY\x01\x00\x80\x00" + path.read_bytes(), path),
}


def assert_unquoted(text: str, secret: bytes, path: str) -> None:
    """No four bytes of the secret are in the text, in any spelling, nor its beginning as a number."""
    text = text.replace(path, "")
    for width in (4, 8):
        part = secret[:width]
        number = int.from_bytes(part, "little")
        spellings = (repr(part)[2:-1], part.hex(), part.hex(" "), str(number), f"{number:,}", hex(number))
        for spelling in spellings:
            assert spelling not in text, spelling
    for begin in range(0, 200, 4):
        assert repr(secret[begin : begin + 4])[2:-1] not in text


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("reader", READERS)
def test_readers(tmp_path: Path, reader: str, kind: str) -> None:
    path = tmp_path / "x.a2run2"
    path.write_bytes(SECRETS[kind])
    with pytest.raises(TapeError) as caught:
        READERS[reader](path)
    assert_unquoted(said(caught.value), SECRETS[kind], str(path))


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("suffix", ["", ".a2run2", ".jsonl", ".a2pack", ".parquet"])
def test_sources(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(SECRETS[kind])
    try:
        errors = [found.error for found in open_source(path).runs()]
    except TapeError as error:
        errors = [error]
    assert errors
    for error in errors:
        assert_unquoted(said(error), SECRETS[kind], str(path))


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("name", ["steps.npy", "metadata.db", "manifest.json"])
def test_links_in_sessions_and_data_sets(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "secret").write_bytes(SECRETS[kind])
    session = write_ours(tmp_path / "20250102T030405Z_model=a")
    dataset = write_dataset(tmp_path / "ds")
    for directory in (session, dataset):
        (directory / "manifest.json").unlink(missing_ok=True)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(tmp_path / "secret")
    for opening in (lambda: Session.open(session), lambda: Corpus.open(session), lambda: Dataset(dataset)):
        with pytest.raises(TapeError) as caught:
            opening()
        assert_unquoted(said(caught.value), SECRETS[kind], str(tmp_path))
    for report in (validate_session(session), verify_dataset(dataset)):
        assert not report.ok
        assert_unquoted(str(report.findings), SECRETS[kind], str(tmp_path))


def test_a_link_to_rows_elsewhere_is_followed(tmp_path: Path) -> None:
    session = write_ours(tmp_path / "20250102T030405Z_model=a")
    rows = Session.open(session)[:]
    shutil.move(session / "steps.npy", tmp_path / "elsewhere.npy")
    (session / "steps.npy").symlink_to(tmp_path / "elsewhere.npy")
    assert (Session.open(session)[:] == rows).all()
