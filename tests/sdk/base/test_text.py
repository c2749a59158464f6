r"""Names of files that are not UTF-8 end up in JSON, Arrow and SQLite as escapes (byte 0xff: ``\udcff``).

Tables for notebooks hold every fact, escaped.
"""

import importlib.resources
import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest

from tape2048 import Corpus, Session, errors
from tape2048.base.drawing import TILES
from tape2048.base.findings import Finding
from tape2048.base.text import facts_table, is_utf8, json_bytes, valid_text
from tape2048.critic import NTupleCritic
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import quarantine_session
from tape2048.runs.conversion import open_source
from tape2048.runs.dataset import build_dataset
from tape2048.runs.exports import export, make_table
from tape2048.runs.run import Run, RunMeta

from ..builders import write_ours
from ..corpora import Built, build
from ..run_builders import a2t1_bytes, game

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
    assert make_table(corpus, "runs").columns["session"] == [SHOWN]
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


def test_a_data_set_can_name_its_sources(tmp_path: Path) -> None:
    runs = tmp_path / os.fsdecode(b"runs\xff")
    runs.mkdir()
    (runs / os.fsdecode(b"a\xff.a2run")).write_bytes(a2t1_bytes(game(1)))
    (runs / os.fsdecode(b"b\xff.a2run")).write_bytes(b"A2T1")
    built = build_dataset(tmp_path / "set", [open_source(runs)])
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_bytes())
    assert built.runs == 1
    assert manifest["skipped"][0]["run"].endswith("b\\udcff.a2run")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("prompt"))


def cells(html: str) -> dict[str, str]:
    """The cells of a table by the name at the left; it has to be well-formed."""
    rows = ET.fromstring(html).iter("tr")  # noqa: S314 - our own
    return {"".join(row[0].itertext()): "".join(row[1].itertext()).strip() for row in rows}


def drawn(html: str) -> list[list[int]]:
    """The exponents of each board of a page; it has to be well-formed."""
    found = []
    for board in ET.fromstring(f"<div>{html}</div>").iter("svg"):  # noqa: S314 - our own
        texts = [text.text for text in board.iter("text")]
        found.append([int(text).bit_length() - 1 if text else 0 for text in texts])
    return found


def test_facts_are_escaped_and_shares_are_bars() -> None:
    found = facts_table("a <b>", {"n & m": 1234567, "name": "<i>"}, {"half": 0.5, "all": 1.0})
    assert cells(found) == {"n & m": "1,234,567", "name": "<i>", "half": "50.00%", "all": "100.00%"}
    assert "a &lt;b&gt;" in found
    assert found.index("width:6.0em") < found.index("width:12.0em")


def test_tables_of_corpora_sessions_and_batches(built: Built) -> None:
    corpus = Corpus.open(built.root)
    found = cells(corpus._repr_html_())
    assert (found["rows"], found["games"]) == (f"{len(built.rows):,}", f"{len(built.games):,}")
    for tile in set(built.highest.tolist()):
        assert found[f"highest tile {tile}"] == f"{(built.highest == tile).mean():.2%}"
    session = corpus.sessions[0]
    assert cells(session._repr_html_())["games"] == f"{len(session.runs):,}"
    batches = corpus.batches(16)
    batch = next(iter(batches))
    found = cells(batches._repr_html_())
    assert (found["position"], found["batches an epoch"]) == ("1", f"{len(batches):,}")
    assert drawn(batch.show(2)._repr_html_()) == batch.tokens[:2].tolist()
    assert drawn(batch._repr_html_()) == batch.tokens[:4].tolist()
    capped = corpus.capped(3)
    assert drawn(capped._repr_html_()) == next(iter(capped.batches(4, fields=("tokens",)))).tokens.tolist()
    with pytest.raises(ValueError, match="expected tokens"):
        next(iter(corpus.batches(4, fields=("labels",)))).show()
    assert {"tokens", "labels"} <= set(dir(batch))
    assert "row" not in dir(batch)


def test_runs_and_critics_draw_boards() -> None:
    boards = [0x1100000000000000, 0x2000000000000001, 0x2010000000000010]
    run = Run(np.array(boards, np.uint64), np.array([2, 0], np.uint8), RunMeta(steps=2, engine="a <b>"))
    shown = [[board >> (60 - 4 * cell) & 15 for cell in range(16)] for board in boards]
    assert drawn(run._repr_html_()) == shown
    assert "a &lt;b&gt;" in run._repr_html_()
    critic = NTupleCritic.load("default")
    for board in (boards[1], shown[1], np.uint64(boards[1])):
        found = critic.show(board)._repr_html_()
        assert drawn(found) == [shown[1]]
        assert f"{critic(np.array([boards[1]], np.uint64))[0, 0]:.2%}" in found
    for board in (2**64, [1] * 15, [16] * 16, -1):
        with pytest.raises(ValueError, match="found the board"):
            critic.show(board)
    assert "8192, 16384, 32768" in critic._repr_html_()
    assert len(drawn(critic._repr_html_())) == 1


def test_boards_have_the_colours_of_the_viewer() -> None:
    style = (importlib.resources.files("tape2048_tools.viewer") / "static/style.css").read_text()
    for exp, colours in enumerate(TILES):
        fill = re.search(rf"\.t{exp} {{ background: (#\w+|var\(--hole\))", style)[1]
        assert fill.replace("var(--hole)", re.search(r"--hole: (#\w+)", style)[1]) == f"#{colours.split()[0]}"


def test_a_frame_without_pandas(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.MissingPackageError, match="pandas"):
        Corpus.open(built.root).runs_frame()
