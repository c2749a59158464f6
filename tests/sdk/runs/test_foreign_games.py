"""Games of other programs, in the layouts that people write."""

import csv
import gzip
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.errors import EmptyCorpusError, FormatError, TapeError
from tape2048.runs import Run, RunMeta, convert, export, open_source, write_session

from ..run_builders import PlainRun, game, ref

GAMES = [game(seed, with_branches=False, engine=None) for seed in range(4)]
WORDS = ("up", "down", "left", "right")
CLOCKWISE = (0, 2, 3, 1)  # numbers of up, down, left and right
Row = dict[str, Any]


def exps(board: int) -> list[int]:
    return ref.unpack(board)


def tiles(board: int) -> list[int]:
    return [1 << each if each else 0 for each in exps(board)]


def nested(board: int) -> list[list[int]]:
    return [tiles(board)[i : i + 4] for i in range(0, 16, 4)]


def steps_of(run: PlainRun) -> Iterator[tuple[int, int, int]]:
    """The number, board and move of each step."""
    return ((i, *pair) for i, pair in enumerate(zip(run.states, run.moves, strict=False)))


def run_of(run: PlainRun) -> Run:
    meta = RunMeta(len(run.moves), 0, 0.0, run.max_score, run.highest_tile, "mine")
    return Run(np.array(run.states, np.uint64), np.array(run.moves, np.uint8), meta)


def every(make: Callable[[int, int, int, int], Row]) -> list[Row]:
    return [make(number, *step) for number, run in enumerate(GAMES) for step in steps_of(run)]


def json_lines(records: list[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def csv_text(records: list[Row], **how: Any) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0]], **how)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def arrow_file(records: list[Row], *, parquet: bool) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as parquets

    out, table = io.BytesIO(), pa.Table.from_pylist(records)
    if parquet:
        parquets.write_table(table, out)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


#: Name of the file, its content, and whether it has the final boards.
LAYOUTS: dict[str, tuple[str, Callable[[], bytes], bool]] = {
    "lists of boards and words": ("a.jsonl", lambda: json_lines(
        [{"boards": [tiles(s) for s in run.states], "moves": [WORDS[m] for m in run.moves]} for run in GAMES]
    ), True),
    "letters in one text, hexadecimal": ("a.jsonl", lambda: json_lines(
        [{"states": [f"{s:016x}" for s in run.states], "moves": "".join("UDLR"[m] for m in run.moves)}
         for run in GAMES]
    ), True),
    "keys, packed boards, a final board": ("a.ndjson", lambda: json_lines(
        [{"boards": run.states[:-1], "actions": ["wsad"[m] for m in run.moves],
          "finalBoard": run.states[-1], "score": run.max_score} for run in GAMES]
    ), True),
    "yethdev/2048-gameplay-dataset": ("train.jsonl.gz", lambda: gzip.compress(json_lines(
        [{"game_id": number, "score": run.max_score, "max_tile": run.highest_tile, "num_moves": 9,
          "moves": [{"board": tiles(b), "action": CLOCKWISE[m], "action_name": WORDS[m], "reward": 0,
                     "move_number": i} for i, b, m in steps_of(run)]} for number, run in enumerate(GAMES)]
    )), False),
    "inforix/play2048, an array": ("games.json", lambda: json.dumps(
        [{"totalMoves": len(run.moves), "finalScore": run.max_score, "maxTile": run.highest_tile,
          "finalBoard": nested(run.states[-1]),
          "moves": [{"board": nested(b), "direction": WORDS[m], "score": 0} for _, b, m in steps_of(run)]}
         for run in GAMES], indent=1
    ).encode(), True),
    "an object of games": ("games.json.zst", lambda: zstd(json.dumps(
        {"games": [{"history": [{"state": exps(b), "action": CLOCKWISE[m]} for _, b, m in steps_of(run)]}
                   for run in GAMES]}
    ).encode()), False),
    "a row a line, interleaved": ("rows.jsonl", lambda: json_lines(sorted(every(
        lambda n, i, b, m: {"episode": f"g{n}", "t": 0, "step": i, "obs": nested(b), "action": CLOCKWISE[m]}
    ), key=lambda row: row["step"])), False),
    "rows with steps alone": (
        "rows.jsonl",
        lambda: json_lines(every(lambda n, i, b, m: {"turn": i, "board": f"{b:016x}", "move": m})),
        False,
    ),
    "rows without games": ("rows.jsonl", lambda: json_lines(every(
        lambda n, i, b, m: {"board": tiles(b), "move": WORDS[m]}
    )), False),
    "cells in 16 columns": ("rows.csv", lambda: csv_text(every(
        lambda n, i, b, m: {"game": n, "step": i} | {f"c{k // 4}{k % 4}": v for k, v in enumerate(tiles(b))}
        | {"dir": "UDLR"[m], "score": 4 * i}
    )), False),
    "boards as text": ("rows.csv.gz", lambda: gzip.compress(csv_text(every(
        lambda n, i, b, m: {"run": n, "board": str(np.array(tiles(b)).reshape(4, 4)), "move": CLOCKWISE[m]}
    ), delimiter=";")), False),
    "hexadecimal in CSV": ("rows.tsv", lambda: csv_text(every(
        lambda n, i, b, m: {"game": n, "board": f"{b:#018x}", "move": WORDS[m][0].upper()}
    ), delimiter="\t"), False),
    "rows in Parquet": ("rows.parquet", lambda: arrow_file(every(
        lambda n, i, b, m: {"game_id": n, "state": nested(b), "action": m}
    ), parquet=True), False),
    "rows in Arrow": ("rows.feather", lambda: arrow_file(every(
        lambda n, i, b, m: {"game_id": n, "exps": exps(b), "action": m}
    ), parquet=False), False),
    "games in Parquet": ("games.parquet", lambda: arrow_file(
        [{"moves": [{"board": tiles(b), "action": m} for _, b, m in steps_of(run)]} for run in GAMES],
        parquet=True
    ), False),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path) -> None:
    """The same games, whatever the layout."""
    name, content, has_end = LAYOUTS[layout]
    (tmp_path / name).write_bytes(content())
    found = [one.checked() for one in open_source(tmp_path / name).runs()]
    assert len(found) == len(GAMES)
    for run, due in zip(found, GAMES, strict=True):
        assert run.moves.tolist() == due.moves
        assert run.states.tolist()[: None if has_end else -1] == due.states[: None if has_end else -1]
        assert (run.meta.max_score, run.meta.highest_tile) == (due.max_score, due.highest_tile)
    rows = Corpus.open(tmp_path / name)
    assert rows[:]["exps"].tolist() == [exps(b) for run in GAMES for _, b, _ in steps_of(run)]


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "arrow", "csv"])
@pytest.mark.parametrize("with_moves", [True, False])
def test_export_and_back(format_: str, with_moves: bool, tmp_path: Path) -> None:
    """Equal rows; without moves, the last board of a game has no row, since its move is not in the file."""
    if format_ != "jsonl":
        pytest.importorskip("pyarrow")
    write_session(tmp_path / "20260101T000000Z_model=x", [run_of(each) for each in GAMES])
    source = Corpus.open(tmp_path / "20260101T000000Z_model=x")
    due, path = source[:], tmp_path / f"rows.{format_}"
    export(source, path, columns=["score", "highest_tile", "steps"])
    if not with_moves:
        convert(path, tmp_path / "lines.a2pack", columns={"move": ""}, lossy=True)
        due = due[np.append(np.diff(due["run_id"]) == 0, False)]
        path = tmp_path / "lines.a2pack"
    convert(path, tmp_path / "back", "session", lossy=not with_moves)
    back = Corpus.open(tmp_path / "back")
    np.testing.assert_array_equal(
        back[:] if with_moves else back[:]["exps"], due if with_moves else due["exps"]
    )
    assert back.runs["score"].tolist() == [each.max_score for each in GAMES]


def test_a_table_of_games_is_no_source(tmp_path: Path) -> None:
    write_session(tmp_path / "20260101T000000Z_model=x", [run_of(GAMES[0])])
    export(Corpus.open(tmp_path / "20260101T000000Z_model=x"), tmp_path / "runs.jsonl", table="runs")
    with pytest.raises(FormatError, match="found the columns session, player, run_id") as caught:
        convert(tmp_path / "runs.jsonl", tmp_path / "back", "session")
    assert "export --rows" in str(caught.value.hint)


def lines_of(changed: Callable[[list[Row]], Any] | None = None) -> bytes:
    """The games as a row a line, one of the rows changed."""
    rows = every(lambda n, i, b, m: {"game": n, "board": tiles(b), "move": WORDS[m]})
    if changed:
        changed(rows)
    return json_lines(rows)


def set_move(rows: list[Row]) -> None:
    illegal = set(range(4)) - set(ref.legal_moves(ref.unpack(GAMES[0].states[20])))
    rows[20]["move"] = WORDS[(illegal or {(GAMES[0].moves[20] + 1) % 4}).pop()]


BAD: dict[str, tuple[Callable[[list[Row]], Any], str]] = {
    "an impossible move": (set_move, "line 21: step 20: move . and one spawned 2 or 4 do not lead from"),
    "a missing row": (lambda rows: rows.pop(20), "line 20: step 19: move . and one spawned"),
    "15 cells": (lambda rows: rows[20]["board"].pop(), r"line 21: the board is \[.*; expected 16 tiles"),
    "no tile": (lambda rows: rows[20]["board"].__setitem__(3, 5), r"line 21: the board is \[.*; expected 16"),
    "another word": (lambda rows: rows[20].update(move="jump"), "step 20: move 'jump', whose direction"),
    "no move": (lambda rows: rows[20].update(move=None), "step 20: move None, whose direction"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_game_is_left_out(bad: str, tmp_path: Path) -> None:
    """The message has the line, the move and the board; the other games are converted."""
    change, message = BAD[bad]
    (tmp_path / "a.jsonl").write_bytes(lines_of(change))
    done = convert(tmp_path / "a.jsonl", tmp_path / "out", "session")
    assert (done.runs, [one.run for one in done.skipped]) == (3, [f"{tmp_path / 'a.jsonl'}: game 0"])
    assert re.search(message, done.skipped[0].message)


def test_a_bad_cell_of_a_column(tmp_path: Path) -> None:
    """Of a row of 16 columns: only its game is left out."""
    pytest.importorskip("pyarrow")
    rows = every(
        lambda n, i, b, m: {"game": n, "move": WORDS[m]} | {f"c{k}": v for k, v in enumerate(exps(b))}
    )
    rows[70]["c3"] = "x"
    (tmp_path / "a.csv").write_bytes(csv_text(rows))
    done = convert(tmp_path / "a.csv", tmp_path / "out", "session")
    assert done.runs == 3
    assert "row 71: the board is " in done.skipped[0].message


def test_a_bad_line_of_a_game(tmp_path: Path) -> None:
    games = [{"boards": run.states, "moves": [WORDS[m] for m in run.moves]} for run in GAMES]
    text = json_lines(games).replace(b'"boards"', b'"board', 1)
    (tmp_path / "a.jsonl").write_bytes(text + b'{"boards": [], "moves": []}\n[1]\n')
    done = convert(tmp_path / "a.jsonl", tmp_path / "out", "a2pack")
    assert done.runs == 3
    assert [one.run.rpartition(": ")[2] for one in done.skipped] == ["line 1", "line 5", "line 6"]
    assert all(one.message.startswith("not a game: ") for one in done.skipped)


def test_the_boards_decide_what_numbers_mean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any numbering; named if it is not ours. A move that no board shows is no guess."""
    for order in itertools.permutations(range(4)):
        rows = every(lambda n, i, b, m: {"game": n, "board": tiles(b), "move": order[m]})  # noqa: B023
        (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
        found = [one.checked().moves.tolist() for one in open_source(tmp_path / "a.jsonl").runs()]
        assert found == [run.moves for run in GAMES]
        named = [f"{number} {WORDS[order.index(number)]}" for number in range(4)]
        assert (", ".join(named) in caplog.text) == (order != (0, 1, 2, 3))
        caplog.clear()
    (tmp_path / "a.json").write_text(json.dumps({"boards": GAMES[0].states[:2], "moves": [9, 8]}))
    (found,) = open_source(tmp_path / "a.json").runs()
    assert "step 1: move 8, whose direction no board shows" in str(found.error)


def test_the_fourth_number_is_what_is_left(tmp_path: Path) -> None:
    """Of a move that only ends the file, if the boards show the other three."""
    run = next(run for run in GAMES if len({*run.moves}) == 4)
    last = max(run.moves.index(move) for move in range(4))
    game_ = {"boards": run.states[: last + 1], "moves": [CLOCKWISE[m] for m in run.moves[: last + 1]]}
    (tmp_path / "a.json").write_text(json.dumps(game_))
    (found,) = open_source(tmp_path / "a.json").runs()
    assert found.checked().moves.tolist() == run.moves[: last + 1]


def test_boards_from_after_the_moves(tmp_path: Path) -> None:
    """The first move is lost, which convert says."""
    rows = [
        {"game": number, "board": tiles(run.states[i + 1]), "move": move}
        for number, run in enumerate(GAMES)
        for i, move in enumerate(run.moves)
    ]
    (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
    with pytest.raises(TapeError, match="cannot hold the first move"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "a2pack")
    found = [one.checked() for one in open_source(tmp_path / "a.jsonl").runs()]
    assert [run.moves.tolist() for run in found] == [run.moves[1:] for run in GAMES]
    assert [run.states.tolist() for run in found] == [run.states[1:] for run in GAMES]


def test_records_have_their_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    games = [{"board": [tiles(b) for b in GAMES[0].states], "move": [WORDS[m] for m in GAMES[0].moves]}] * 130
    games[129] = {**games[0], "move": ["up"]}
    (tmp_path / "a.parquet").write_bytes(arrow_file(games, parquet=True))
    assert [one.name[-7:] for one in open_source(tmp_path / "a.parquet").runs() if one.error] == ["row 130"]


def test_a_layout_that_nobody_can_guess(tmp_path: Path) -> None:
    """The columns found, the first record, the names expected, and how to give others."""
    rows = every(lambda n, i, b, m: {"g": n, "bits": tiles(b), "to": WORDS[m]})
    (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
    with pytest.raises(
        FormatError, match=r"found the columns g, bits, to; expected a board .*\{\"g\":0,"
    ) as caught:
        open_source(tmp_path / "a.jsonl")
    assert "--columns board=NAME,move=NAME,game=NAME" in str(caught.value.hint)
    how = {"board": "bits", "move": "to", "game": "g"}
    found = [one.checked() for one in open_source(tmp_path / "a.jsonl", columns=how).runs()]
    assert [run.moves.tolist() for run in found] == [run.moves for run in GAMES]
    with pytest.raises(TapeError, match="columns: found 'bored'; expected some of steps, board, move"):
        open_source(tmp_path / "a.jsonl", columns={"bored": "bits"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", gzip.compress(lines_of())[:-30], "the compressed data is damaged or cut off"),
        ("a.json", b"[{", "malformed"),
        ("a.csv", b"board,move\n", "not readable as CSV"),
        ("a.csv", b"a;b\n1;2\n", "found the columns a, b; expected a board"),
        ("a.parquet", b"PAR1 and nothing", "not readable as Parquet"),
        ("a.jsonl", json_lines([{"board": tiles(b)} for b in GAMES[0].states[::2]]), "do not follow"),
        ("a.jsonl", json_lines([{"board": tiles(b), "move": WORDS[m - 1]} for _, b, m in steps_of(GAMES[0])]),
         "the moves do not fit the boards: the boards show that"),
    ],
)  # fmt: skip
def test_bad_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    for opened in (open_source, Corpus.open):
        with pytest.raises((FormatError, EmptyCorpusError), match=message):
            opened(tmp_path / name)  # type: ignore[operator]


def test_a_corpus_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Converted once, and again when the file changes; each opening names games that are left out."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of(set_move))
    for _ in range(2):
        caplog.clear()
        assert len(Corpus.open(path).runs) == 3
        assert re.search("left out 1 game. .* line 21: ", caplog.text)
    path.write_bytes(lines_of())
    assert len(Corpus.open(path).runs) == 4
    assert len([*(tmp_path / "cache/tape2048/games").glob("a-*[!.txt]")]) == 2
