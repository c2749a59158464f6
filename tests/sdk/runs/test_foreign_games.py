"""Games of other programs, in the layouts that people write."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.runs import open_source

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
