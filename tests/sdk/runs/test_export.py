"""What is exported is what the sessions hold, by whoever reads it."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048.corpus import Corpus
from tape2048.errors import ColumnError, DiskFullError, MissingPackageError
from tape2048.runs import convert, exports, open_source
from tape2048.runs.exports import record_batches, run_file_table
from tape2048.runs.registry import FORMATS, TABLE_FORMATS
from tape2048.session.column_draft import write_column

from .. import run_builders as build
from ..builders import GAMES, Game, Spec, memory_below, raising, rows_of, write_ours

pa = pytest.importorskip("pyarrow")

NAMES = ("20250102T030405Z_model=toy", "20250103T030405Z_model=toy")
OTHER_GAMES = (Game(3, 6, 16384, seed=5, max_score=2**31), Game(4, 2, 64, seed=6))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sessions: 20 rows of 5 games, and 8 rows of 2."""
    write_ours(tmp_path / "sessions" / NAMES[0])
    write_ours(tmp_path / "sessions" / NAMES[1], Spec(games=OTHER_GAMES))
    return tmp_path / "sessions"


@pytest.fixture
def corpus(root: Path) -> Corpus:
    return Corpus.open(root, load="mmap")


def expected_rows(thresholds: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The rows as they were written, record by record."""
    found = []
    for name, games in zip(NAMES, (GAMES, OTHER_GAMES), strict=True):
        tile = {game.id: game.highest_tile for game in games}
        for row in rows_of(Spec(games=games)):
            record = {
                "session": name, "run_id": int(row["run_id"]), "step_idx": int(row["step_idx"]),
                "exps": row["exps"].tolist(),
            }  # fmt: skip
            labels = {f"reached_{least}": tile[record["run_id"]] >= least for least in thresholds}
            found.append(record | labels)
    return found


def expected_runs(thresholds: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    found = []
    for name, games in zip(NAMES, (GAMES, OTHER_GAMES), strict=True):
        for game in games:
            record = {
                "session": name, "player": "", "run_id": game.id, "seed": game.seed, "steps": game.steps,
                "max_score": game.max_score, "highest_tile": game.highest_tile, "rows": game.steps,
            }  # fmt: skip
            found.append(record | {f"reached_{least}": game.highest_tile >= least for least in thresholds})
    return found


EXPECTED: dict[str, Callable[..., list[dict[str, Any]]]] = {"rows": expected_rows, "runs": expected_runs}


def _of_csv(record: dict[str, str]) -> dict[str, Any]:
    cells = [int(record.pop(f"exps_{i}")) for i in range(16)] if "exps_0" in record else None
    words = {"true": True, "false": False}
    found: dict[str, Any] = {}
    for name, text in record.items():
        found[name] = words.get(text, int(text) if text.isdecimal() else text)
        if name == "step_idx" and cells is not None:
            found["exps"] = cells
    return found


def read(path: Path, format_: str) -> list[dict[str, Any]]:
    """The records of a file, by readers that are not ours."""
    if format_ == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if format_ == "csv":
        with path.open(newline="") as file:
            return [_of_csv(record) for record in csv.DictReader(file)]
    if format_ == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
    else:
        table = pa.ipc.open_file(path).read_all()
    records: list[dict[str, Any]] = table.to_pylist()
    return records


@pytest.mark.parametrize("format_", TABLE_FORMATS)
def test_files_hold_every_record(corpus: Corpus, tmp_path: Path, format_: str) -> None:
    for number, how in enumerate((None, *FORMATS[format_].compressions)):
        for table, expected in EXPECTED.items():
            path, due = tmp_path / f"{table}{number}", expected((8192, 16384))
            options: Any = {"table": table, "thresholds": (8192, 16384), "compression": how}
            assert exports.export(corpus, path, format=format_, **options) == len(due)
            assert read(path, format_) == due


def test_types_stay_what_they_are(corpus: Corpus, tmp_path: Path) -> None:
    exports.export(corpus, tmp_path / "rows", format="arrow", thresholds=(8192,))
    schema = pa.ipc.open_file(tmp_path / "rows").read_all().schema
    types = {"exps": pa.list_(pa.uint8(), 16), "run_id": pa.uint64(), "step_idx": pa.uint32()}
    types |= {"reached_8192": pa.bool_(), "session": pa.dictionary(pa.int32(), pa.string())}
    assert {name: schema.field(name).type for name in types} == types


def test_stretches_make_the_whole(corpus: Corpus) -> None:
    for records in (1, 3, 7, 100):
        for table, expected in EXPECTED.items():
            batches = list(record_batches(corpus, table, thresholds=(4096,), records=records))  # type: ignore[arg-type]
            assert all(batch.num_rows <= records for batch in batches)
            assert pa.Table.from_batches(batches).to_pylist() == expected((4096,))
    for nothing in (0, -1):
        with pytest.raises(ValueError, match=f"records={nothing}; expected at least 1"):
            record_batches(corpus, records=nothing)


def test_a_view_gives_its_own_rows_and_runs(corpus: Corpus, tmp_path: Path) -> None:
    view = corpus.where("highest_tile >= 16384").phase(steps=(1, 4))
    keep = {13, 15, 3}
    rows = [r for r in expected_rows() if r["run_id"] in keep and 1 <= r["step_idx"] < 4]
    assert exports.export(view, tmp_path / "rows", format="jsonl") == len(rows)
    assert read(tmp_path / "rows", "jsonl") == rows
    runs = [r | {"rows": min(r["steps"], 4) - 1} for r in expected_runs() if r["run_id"] in keep]
    exports.export(view, tmp_path / "runs", format="parquet", table="runs")
    assert read(tmp_path / "runs", "parquet") == runs


def test_actions_come_along(tmp_path: Path) -> None:
    write_ours(tmp_path / NAMES[0], Spec(action=True))
    corpus = Corpus.open(tmp_path / NAMES[0], load="mmap")
    exports.export(corpus, tmp_path / "out", format="arrow")
    found = read(tmp_path / "out", "arrow")
    assert [r["action"] for r in found] == rows_of(Spec(action=True))["action"].tolist()


def test_sessions_of_one_name_are_one_word(tmp_path: Path) -> None:
    for place, name, games in (("a", 0, GAMES), ("b", 0, OTHER_GAMES), ("c", 1, OTHER_GAMES)):
        write_ours(tmp_path / place / NAMES[name], Spec(games=games))
    corpus = Corpus.open([tmp_path / "a", tmp_path / "b", tmp_path / "c"], duplicates="keep")
    for table, counts in (("rows", (20, 8, 8)), ("runs", (5, 2, 2))):
        path = tmp_path / table
        exports.export(corpus, path, format="arrow", table=table)  # type: ignore[arg-type]
        found = pa.ipc.open_file(path).read_all()["session"]
        assert found.chunk(0).dictionary.to_pylist() == list(NAMES)
        assert found.to_pylist() == np.repeat([NAMES[0], NAMES[0], NAMES[1]], counts).tolist()


def test_progress_and_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ours(tmp_path / NAMES[0], Spec(games=(Game(1, 10_000), Game(2, 5_000))))
    corpus = Corpus.open(tmp_path / NAMES[0], load="mmap")
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(exports, "LINE_RECORDS", 1000)
    with memory_below(5_000_000):  # 15,000 rows as Python's objects would be ten megabytes
        exports.export(corpus, tmp_path / "out", format="jsonl", progress=lambda *now: seen.append(now))
    assert seen == [(done, 15_000) for done in range(1000, 15_001, 1000)]


def test_other_readers(corpus: Corpus, tmp_path: Path) -> None:
    """DuckDB, Polars and pandas find the same records, and exact seeds."""
    duckdb, polars, pandas = map(pytest.importorskip, ("duckdb", "polars", "pandas"))
    for format_ in ("parquet", "arrow", "jsonl"):
        rows, runs = tmp_path / f"rows.{format_}", tmp_path / f"runs.{format_}"
        exports.export(corpus, rows, format=format_, thresholds=(8192,))
        exports.export(corpus, runs, format=format_, table="runs")
        readers = {"parquet": polars.read_parquet, "arrow": polars.read_ipc, "jsonl": polars.read_ndjson}
        assert readers[format_](rows).to_dicts() == expected_rows((8192,))
        assert readers[format_](runs).to_dicts() == expected_runs()
        if format_ != "arrow":
            found = duckdb.sql(
                f"select sum(exps[1]), count(*) filter (reached_8192) from '{rows}'"
            ).fetchall()
            records = expected_rows((8192,))
            assert found == [(sum(r["exps"][0] for r in records), sum(r["reached_8192"] for r in records))]
            seeds = [seed for (seed,) in duckdb.sql(f"select seed from '{runs}'").fetchall()]
            assert seeds == [record["seed"] for record in expected_runs()]
        if format_ != "jsonl":
            frame = (pandas.read_parquet if format_ == "parquet" else pandas.read_feather)(runs)
            assert frame["seed"].dtype == np.uint64
            assert frame.to_dict("records") == expected_runs()


def test_a_failure_leaves_nothing(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt, path = raising(KeyboardInterrupt()), tmp_path / "out" / "rows"
    path.parent.mkdir()
    for format_ in TABLE_FORMATS:
        with pytest.raises(KeyboardInterrupt):
            exports.export(corpus, path, format=format_, progress=interrupt)
    monkeypatch.setattr("tape2048.files.durable.os.fsync", raising(OSError(28, "No space left on device")))
    for format_ in TABLE_FORMATS:
        with pytest.raises(DiskFullError):
            exports.export(corpus, path, format=format_)
    assert not list(path.parent.iterdir())


def test_wrong_arguments(corpus: Corpus, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": "xlsx"}, "format 'xlsx'; expected one of"),
        ({"format": "parquet", "compression": "lz4"}, "compression 'lz4' of parquet"),
        ({"format": "jsonl", "compression": "zstd"}, "compression 'zstd' of jsonl"),
        ({"format": "jsonl", "table": "games"}, "table 'games'"),
        ({"format": "jsonl", "thresholds": (3,)}, "thresholds"),
        *(({"format": name, "u64": "text"}, "u64='text' of") for name in ("csv", "parquet", "arrow")),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            exports.export(corpus, tmp_path / "out", **options)
    session: Any = corpus.sessions[0]
    with pytest.raises(TypeError, match=r"found <Session .*>, expected a Corpus"):
        exports.export(session, tmp_path / "out", format="jsonl")
    assert not (tmp_path / "out").exists()


def test_without_pyarrow(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for format_ in ("parquet", "arrow"):
        with pytest.raises(MissingPackageError, match="pyarrow") as caught:
            exports.export(corpus, tmp_path / "out", format=format_)
        assert "tape2048[arrow]" in str(caught.value.hint)
    with pytest.raises(MissingPackageError, match="pyarrow"):
        next(record_batches(corpus))
    exports.export(corpus, tmp_path / "out", format="jsonl")


def test_seeds_as_text_are_exact_for_every_reader(corpus: Corpus, tmp_path: Path) -> None:
    from pyarrow import json as pyarrow_json

    seeds = [record["seed"] for record in expected_runs()]
    number, text = tmp_path / "number.jsonl", tmp_path / "text.jsonl"
    exports.export(corpus, number, format="jsonl", table="runs")
    exports.export(corpus, text, format="jsonl", table="runs", u64="text")
    assert pyarrow_json.read_json(number)["seed"].to_pylist() != seeds
    assert pyarrow_json.read_json(text)["seed"].cast(pa.uint64()).to_pylist() == seeds
    as_text = [
        record | {name: str(record[name]) for name in ("run_id", "seed")} for record in expected_runs()
    ]
    assert read(text, "jsonl") == as_text


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Run files of both formats, a pack, and their records by the plain definition."""
    root = tmp_path / "traces"
    (root / "ab/cd").mkdir(parents=True)
    records = []
    for seed, name in enumerate(("ab/cd/1.a2run", "ab/cd/2.a2run2", "b.a2run", "c.bin")):
        plain = build.game(
            seed, with_branches=name.endswith("2"), steps_max=9 + seed, elapsed_s=0.1,
            start_unix_s=2**63 + seed, engine=[None, 'a,"b"', "ü", "toy"][seed],
        )  # fmt: skip
        content = build.a2run2_bytes(plain) if name.endswith("2") else build.a2t1_bytes(plain)
        (root / name).write_bytes(content)
        records.append({
            "source": str(root / name), "steps": len(plain.moves), "start_unix_s": plain.start_unix_s,
            "elapsed_s": 0.1, "max_score": plain.max_score, "highest_tile": plain.highest_tile,
            "engine": plain.engine or "", "reached_16": plain.highest_tile >= 16,
        })  # fmt: skip
    return root, records


def test_run_files_summed_up(traces: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    root, records = traces
    convert(root, tmp_path / "all.a2pack")
    (root / "bad.a2run").write_bytes(b"A2T1 and nothing")
    seen: list[tuple[int, int]] = []
    sources = [open_source(root), open_source(tmp_path / "all.a2pack")]
    table, skipped = run_file_table(sources, (16,), lambda *now: seen.append(now))
    assert seen[-1] == (9, 9)
    assert [(one.run, one.error) for one in skipped] == [(str(root / "bad.a2run"), "TruncatedError")]
    packed = [one | {"source": f"{tmp_path}/all.a2pack: entry {i}"} for i, one in enumerate(records)]
    for format_ in TABLE_FORMATS:
        assert exports.write_table(table, tmp_path / format_, format=format_) == 8
        found = read(tmp_path / format_, format_)
        for record in found:
            assert np.float32(record["elapsed_s"]) == np.float32(0.1)
            record["elapsed_s"] = 0.1
        assert found == records + packed


#: Columns as exported: NaN, bits of bfloat16 as float32, the largest integers.
COLUMNS: dict[str, Callable[[NDArray[np.int64]], NDArray[Any]]] = {
    "big": lambda at: np.uint64(2**64 - 1) - at.astype(np.uint64),
    "embeddings": lambda at: np.stack([at * 0.5, -at], axis=1).astype(np.float32),
    "flag": lambda at: at % 2 == 0,
    "half": lambda at: (at * 0.1).astype(np.float16),
    "loss": lambda at: (at * 0.1).astype(np.float32),
    "values": lambda at: np.where(at[:, None] % 4 == np.arange(4), np.nan, at[:, None] / 3).astype("<f4"),
}


def write_columns(corpus: Corpus) -> NDArray[np.int64]:
    """Write them, and return the number of each row of the corpus, by which their values differ."""
    numbers = np.arange(len(corpus))
    for session, own in zip(corpus.sessions, np.split(numbers, [20]), strict=True):
        for name, make in COLUMNS.items():
            write_column(session, name, make(own), dtype="bf16" if name == "embeddings" else None)
    return numbers


def cells(path: Path, format_: str, name: str) -> Any:
    if format_ != "csv":
        return [record[name] for record in read(path, format_)]
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    names = [each for each in found[0] if each.rpartition("_")[0] == name] or [name]
    lines = [[{"true": 1, "false": 0}.get(line[each], line[each]) for each in names] for line in found]
    return lines if len(names) > 1 else [line[0] for line in lines]


@pytest.mark.parametrize("format_", TABLE_FORMATS)
@pytest.mark.parametrize("overlay", [False, True])
def test_columns_of_sessions(root: Path, tmp_path: Path, format_: str, overlay: bool) -> None:
    """Of every row of a corpus or a view, and none with the runs."""
    corpus = Corpus.open(root, columns=tmp_path / "columns" if overlay else None)
    numbers = write_columns(corpus)
    view = corpus.where("highest_tile >= 16384").phase(steps=(1, 4))
    chosen = view.fetch(slice(None), ("run", "step"))
    first = corpus.row_starts[
        [int(np.flatnonzero(corpus.runs["run_id"] == i)[0]) for i in view.runs["run_id"]]
    ]
    for number, (source, rows) in enumerate(
        ((corpus, numbers), (view, first[chosen["run"]] + chosen["step"]))
    ):
        path = tmp_path / str(number)
        exports.export(source, path, format=format_)
        for name, make in COLUMNS.items():
            due = make(rows)
            found = np.array(cells(path, format_, name))
            np.testing.assert_array_equal(found.astype(due.dtype), due, strict=True)
    exports.export(corpus, tmp_path / "runs", format=format_, table="runs")
    assert read(tmp_path / "runs", format_) == expected_runs()
    exports.export(corpus, tmp_path / "chosen", format="jsonl", columns=["loss", "flag"])
    assert list(read(tmp_path / "chosen", "jsonl")[0])[4:] == ["loss", "flag"]
    exports.export(corpus, tmp_path / "none", format="jsonl", columns=[])
    assert read(tmp_path / "none", "jsonl") == expected_rows()


def test_types_of_columns(corpus: Corpus) -> None:
    numbers = write_columns(corpus)
    found = pa.Table.from_batches(record_batches(corpus, records=3))
    assert found["loss"].to_pylist() == COLUMNS["loss"](numbers).tolist()
    schema = found.schema
    types = [schema.field(name).type for name in COLUMNS]
    floats = pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 4)
    assert types == [pa.uint64(), floats[0], pa.bool_(), pa.float16(), pa.float32(), floats[1]]


def test_columns_of_some_sessions(corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are named, and not exported; nor is one with the name of a field."""
    first, second = corpus.sessions
    write_column(first, "loss", np.zeros(20))
    exports.export(corpus, tmp_path / "a", format="jsonl")
    assert read(tmp_path / "a", "jsonl") == expected_rows()
    assert [line.partition(": ")[0] for line in caplog.messages] == ["columns left out"]
    assert str(second.path) in caplog.text
    with pytest.raises(ColumnError, match="no column 'loss' that is equal in all sessions"):
        exports.export(corpus, tmp_path / "b", format="jsonl", columns=["loss"])
    exports.export(
        corpus.where(corpus.runs["session"] == 0), tmp_path / "c", format="jsonl", columns=["loss"]
    )
    for session in (first, second):
        write_column(session, "exps", np.zeros(len(session)))
    with pytest.raises(ColumnError, match="'exps' has the name of a field"):
        exports.export(corpus, tmp_path / "d", format="jsonl")
