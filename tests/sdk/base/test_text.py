r"""Names of files that are not UTF-8 end up in JSON, Arrow and SQLite as escapes (byte 0xff: ``\udcff``)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from tape2048 import Corpus, Session
from tape2048.base.findings import Finding
from tape2048.base.text import is_utf8, json_bytes, valid_text
from tape2048.conversion.dataset_build import build_dataset
from tape2048.conversion.sources import open_source
from tape2048.export.table import make_table
from tape2048.export.write import export
from tape2048.formats.metadata import read_metadata, write_metadata
from tape2048.formats.session import BLOCK_DTYPE, RUN_DTYPE
from tape2048.maintenance.removal import quarantine_session
from tape2048.session.locks import RemovalLock

from ..builders import write_ours
from ..run_builders import a2t1_bytes, game

if TYPE_CHECKING:
    from pathlib import Path

ODD = os.fsdecode(b"20250102T030405Z_model=a\xff")
SHOWN = "20250102T030405Z_model=a\\udcff"


class Facts(msgspec.Struct):
    name: str
    more: list[object]


def test_invalid_unicode_is_escaped_everywhere() -> None:
    document = Facts(ODD, [{ODD: (1, 2.5, None)}, "ü"])
    assert json.loads(json_bytes(document)) == {"name": SHOWN, "more": [{SHOWN: [1, 2.5, None]}, "ü"]}
    assert json_bytes({"ü": 1}) == '{"ü":1}'.encode()
    assert (valid_text("ü\\"), valid_text(ODD)) == ("ü\\", SHOWN)
    assert is_utf8("ü\\")
    assert not is_utf8(ODD)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return write_ours(tmp_path / "sessions" / ODD)


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "arrow"])
def test_exported_session_names_are_readable(tmp_path: Path, session: Path, format_: str) -> None:
    if format_ != "jsonl":
        pytest.importorskip("pyarrow")
    corpus = Corpus.open(session, load="mmap")
    assert make_table(corpus, "runs").columns[0].words == (SHOWN,)
    assert export(corpus, tmp_path / "out", format=format_, table="runs") == len(corpus.runs)  # type: ignore[arg-type]
    assert (
        SHOWN.replace("\\", "\\\\" if format_ == "jsonl" else "\\").encode()
        in (tmp_path / "out").read_bytes()
    )


def test_it_goes_to_the_quarantine_with_its_reason(session: Path) -> None:
    finding = Finding("ChecksumError", "changed", str(session / "steps.npy"), None, None)
    with RemovalLock(session.parent) as upkeep:
        moved = quarantine_session(session, [finding], upkeep, by="a test")
    assert Session.open(moved).name == ODD
    reason = json.loads(moved.with_name(f"{ODD}.reason.json").read_bytes())
    assert reason["was"].endswith(SHOWN)


def test_a_merged_session_can_name_it(tmp_path: Path) -> None:
    facts = {"merged_from": [{"name": ODD}]}
    write_metadata(
        tmp_path / "metadata.db", runs=np.zeros(1, RUN_DTYPE), blocks=np.zeros(0, BLOCK_DTYPE), session=facts
    )
    assert read_metadata(tmp_path / "metadata.db").session == {"merged_from": [{"name": SHOWN}]}


def test_a_data_set_can_name_its_sources(tmp_path: Path) -> None:
    runs = tmp_path / os.fsdecode(b"runs\xff")
    runs.mkdir()
    (runs / os.fsdecode(b"a\xff.a2run")).write_bytes(a2t1_bytes(game(1)))
    (runs / os.fsdecode(b"b\xff.a2run")).write_bytes(b"A2T1")
    built = build_dataset(tmp_path / "set", [open_source(runs)])
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_bytes())
    assert built.runs == 1
    assert manifest["skipped"][0]["run"].endswith("runs\\udcff/b\\udcff.a2run")
