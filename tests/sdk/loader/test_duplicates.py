"""A game that several sessions hold is served once: from which session, and with what words."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.runs import Dataset, append_dataset, build_dataset, convert, open_source
from tape2048.session.column_draft import write_column
from tape2048.session.session import Session

from ..builders import NAME, Game, Spec, write_ours
from ..tapes import games_on_tape, write_rows, write_tape

GAMES = games_on_tape(3, 1, 2)
FACTS = {"player": "toy", "player_sha256": "a" * 64}


class Pair:
    """A session of rows, and its games on tape."""

    def __init__(self, directory: Path) -> None:
        self.rows = write_rows(directory / NAME, GAMES, **FACTS)
        self.tape = write_tape(directory / f"{NAME}-2", GAMES, **FACTS)

    def add(self, path: Path, *names: str) -> None:
        session = Session.open(path)
        for name in names:
            write_column(session, name, np.zeros(len(session), np.uint8))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "root")


@pytest.mark.parametrize(
    ("of_rows", "of_tape", "why"),
    [
        ((), (), "rows, tape, is on tape"),
        (("loss", "luck"), (), "tape, rows, has more columns"),
        (("loss",), ("luck",), "rows, tape, is on tape, but lacks loss"),
        (("a", "b", "c"), ("d", "e"), "tape, rows, has more columns, but lacks d and e"),
        (("loss",), ("loss",), "rows, tape, is on tape"),
    ],
)
def test_more_columns_win_and_then_a_tape(
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
    of_rows: tuple[str, ...],
    of_tape: tuple[str, ...],
    why: str,
) -> None:
    pair.add(pair.rows, *of_rows)
    pair.add(pair.tape, *of_tape)
    out, served, reason = why.split(", ", 2)
    corpus = Corpus.open(pair.rows.parent)
    assert [one.path for one in corpus.sessions] == [getattr(pair, served)]
    left = f"left out: 3 games of {getattr(pair, out)}, also in {getattr(pair, served)}, which {reason}"
    assert caplog.messages == [left]
    for name in of_rows if served == "rows" else of_tape:
        assert corpus.fetch([0], (name,))[name].shape == (1,)


def test_columns_of_an_overlay_count(pair: Pair, tmp_path: Path) -> None:
    session = Session.open(pair.rows, columns=tmp_path / "columns")
    write_column(session, "loss", np.zeros(len(session), np.uint8))
    (served,) = Corpus.open(pair.rows.parent, columns=tmp_path / "columns").sessions
    assert served.path == pair.rows


def test_a_session_with_more_rows_of_a_game_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A sampled session with a column, and a whole one; games that only one of them holds stay."""
    facts = {**FACTS, "sample_rate": 2}
    shared, own = Game(1, 8, seed=5), Game(2, 8, seed=6)
    part = write_ours(tmp_path / NAME, Spec(games=(shared, own), sample_rate=2, facts=facts))
    whole = write_ours(tmp_path / f"{NAME}-2", Spec(games=(shared,), facts=FACTS | {"sample_rate": 1}))
    write_column(Session.open(part), "loss", np.zeros(8, np.uint8))
    corpus = Corpus.open(tmp_path)
    assert corpus.runs[["seed", "rows"]].tolist() == [(6, 4), (5, 8)]
    why = "has more rows of them, but lacks loss"
    assert caplog.messages == [f"left out: 1 game of {part}, also in {whole}, which {why}"]


def test_the_first_of_equal_sessions_wins(pair: Pair, tmp_path: Path) -> None:
    copy = shutil.copytree(pair.tape, tmp_path / "copy" / NAME)
    for order in ([copy, pair.tape], [pair.tape, copy]):
        assert [one.path for one in Corpus.open(order).sessions] == order[:1]


def test_a_selection_is_made_first(pair: Pair) -> None:
    """A condition on one of the sessions finds all its games."""
    for path in (pair.rows, pair.tape):
        assert len(Corpus.open(pair.rows.parent, f"session = '{path.name}'").runs) == 3


def test_several_sources_of_a_data_set_hold_a_game_once(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions, directories and data sets, by the same rule, and what a data set holds is not appended."""
    built = build_dataset(tmp_path / "a", [pair.rows, pair.tape])
    text = f"left out: 3 games of {pair.rows}, also in {pair.tape}, which is on tape"
    assert (built.runs, caplog.messages) == (3, [text])
    other = write_tape(tmp_path / "b" / NAME, games_on_tape(2, 4), **FACTS)
    assert build_dataset(tmp_path / "c", [pair.tape, other.parent, tmp_path / "a"]).runs == 4
    caplog.clear()
    again = append_dataset(tmp_path / "a", [other])
    assert (again.runs, again.copies) == (1, 1)
    text = f"left out: 1 game of {other}, also in {tmp_path / 'a'}, which has them already"
    assert caplog.messages == [text]
    assert sorted(Dataset(tmp_path / "a").run_table.rows["seed"].tolist()) == [1, 2, 3, 4]
    assert len(Dataset([tmp_path / "c", tmp_path / "a"]).runs) == 4


def test_a_conversion_has_the_values_of_the_session_with_columns(pair: Pair) -> None:
    session = Session.open(pair.rows)
    write_column(session, "values", np.ones((len(session), 4), np.float32), facts={"moves": True})
    found = [found.checked() for found in open_source(pair.rows.parent).runs()]
    assert len(found) == 3
    assert all(run.has_branches is not None and run.has_branches.any() for run in found)


@pytest.mark.parametrize("names", [(), ("loss",), ("loss", "luck")])
def test_the_original_precedes_its_conversions(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    """A pack with five fields of zeros, and a data set with two fields."""
    pack, rows = tmp_path / "pack48", tmp_path / "ds"
    convert(pair.tape, pack, "pack48", lossy=True)
    build_dataset(rows, [pair.tape])
    pair.add(pair.tape, *names)
    caplog.clear()
    corpus = Corpus.open([pack, rows, pair.tape])
    assert [one.path for one in corpus.sessions] == [pair.tape]
    assert [*corpus.fetch([0], ("tokens", *names))] == ["tokens", *names]
    why = f"also in {pair.tape}, which is the original, but lacks"
    left = f"left out: 3 games of {pack}, {why} max_rank; 3 games of {rows}, {why} ev_legal"
    assert caplog.messages == [left]


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_field_of_zeros_is_no_column(pair: Pair, tmp_path: Path, is_filled: bool) -> None:
    """Of two packs with the same fields, the pack wins that has values in them."""
    packs = [tmp_path / "a", tmp_path / "b"]
    for pack in packs:
        convert(pair.tape, pack, "pack48", lossy=True)
    rows = np.load(packs[1] / "steps-00000.npy")
    rows["board_eval"] = int(is_filled)
    np.save(packs[1] / "steps-00000.npy", rows)
    assert Corpus.open(packs).sessions[0].path == packs[is_filled]
