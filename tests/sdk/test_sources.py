"""Corpora of every storage, load, view and order, against a slow reference in NumPy."""

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.base import guide
from tape2048.errors import EmptyCorpusError
from tape2048.loader import run_columns
from tape2048.runs import Dataset

from .builders import SEED_SCHEMA, Game, Spec, signed, write_database, write_foreign
from .corpora import move_between
from .runs.set_builders import ROW, packdat_bytes, write_dataset
from .session.packs import STEP_ROW
from .tapes import TapeGames, as_rows, games_on_tape, ref, write_rows, write_tape

#: Seeds of the games of three groups; each group is stored in every way.
GROUPS = ((0, 1, 2, 3), (3, 4), (5, 6, 7))
PLAYER = "ab" * 32
#: Data sets and pack.dat, whose rows are also those of a ``Dataset``.
TABLES = ("data set", "shards", "pack.dat")
#: Storages whose rows have the move that was made, and those that have it as the action.
WITH_MOVE, WITH_ACTION = (*TABLES, "pack"), ("action", "tape", *TABLES, "pack")
STORAGES = ("rows", "others", *WITH_ACTION)


def values_of(games: TapeGames) -> NDArray[np.float32]:
    """Branch values that a pack.dat holds without loss: 1 for the chosen move, 0 for illegal ones."""
    levels = np.random.default_rng(len(games.tape)).integers(0, 65535, (len(games.tape), 4))
    for row, board in enumerate(games.boards.tolist()):
        legal = ref.legal_moves(ref.unpack(board))
        levels[row, [move for move in range(4) if move not in legal]] = 0
    levels[np.arange(len(levels)), games.moves] = 65535
    return (levels.astype(np.float32) / np.float32(65535)).astype(np.float32)


def plain_runs(games: TapeGames) -> list[Any]:
    found = []
    values = values_of(games)
    for run in games.runs:
        mine = slice(int(run["first_row"]), int(run["first_row"] + run["rows"]))
        branches = [
            [value if value or move == chosen else None for move, value in enumerate(row)]
            for row, chosen in zip(values[mine].tolist(), games.moves[mine].tolist(), strict=True)
        ]
        text = f"tape2048 0.1.0 toy player_sha256={PLAYER} seed={run['seed']}"
        found.append(types.SimpleNamespace(
            states=games.boards[mine].tolist(), moves=games.moves[mine].tolist(), branches=branches,
            max_score=int(run["score"]), highest_tile=int(run["highest_tile"]), engine=text,
            start_unix_s=0, elapsed_s=0.0,
        ))  # fmt: skip
    return found


def write(directory: Path, storage: str, games: TapeGames) -> Path:
    path = directory / storage.replace(" ", "-")
    match storage:
        case "rows" | "action":
            return write_rows(path, games, record_action=storage == "action", player_sha256=PLAYER)
        case "tape":
            return write_tape(path, games, player_sha256=PLAYER)
        case "data set" | "shards":
            rows = np.zeros(len(games.tape), ROW)
            rows["board"], rows["move"], rows["ev_values"] = games.boards, games.moves, values_of(games)
            rows["run_id"] = np.repeat(np.arange(len(games.runs)), games.runs["rows"])
            rows["step_index"] = as_rows(games)["step_idx"]
            for row in rows:
                row["ev_legal"] = sum(1 << move for move in ref.legal_moves(ref.unpack(int(row["board"]))))
            shard_rows = 37 if storage == "shards" else None
            return write_dataset(path, plain_runs(games), rows=rows, shard_rows=shard_rows)
        case "pack.dat":
            path.write_bytes(packdat_bytes(plain_runs(games)))
            return path
        case "others":
            order = np.argsort(as_rows(games)["step_idx"], kind="stable")

            def put(rows: NDArray[np.void]) -> None:
                rows[:] = as_rows(games, record_action=False)[order]

            names = ("run_id", "steps", "highest_tile", "seed", "score")
            table = [Game(*(int(run[name]) for name in names)) for run in games.runs]
            return write_foreign(path, Spec(games=table, interleaved=True, change_rows=put), shard_rows=70)
        case _:
            rows, whole = np.zeros(len(games.tape), STEP_ROW), as_rows(games)
            rows["run_id"], rows["step_index"] = whole["run_id"], whole["step_idx"]
            rows["board"], rows["move_dir"] = games.boards, games.moves
            path.mkdir()
            for number, first in enumerate(range(0, len(rows), 90)):
                np.save(path / f"steps-{number:05d}.npy", rows[first : first + 90])
            columns = (
                games.runs[name].tolist() for name in ("run_id", "seed", "steps", "score", "highest_tile")
            )
            runs = [tuple(map(signed, run)) for run in zip(*columns, strict=True)]
            write_database(path / "metadata.db", SEED_SCHEMA, runs)
            return path


class Made:
    """Every group in every storage, and its rows by the plain definition."""

    def __init__(self, root: Path) -> None:
        self.games = [games_on_tape(*seeds) for seeds in GROUPS]
        self.rows, self.values = list(map(as_rows, self.games)), list(map(values_of, self.games))
        self.paths: dict[tuple[str, int], Path] = {}
        self.moves: list[NDArray[np.uint8]] = []
        self.legal: list[NDArray[np.uint8]] = []
        for number, games in enumerate(self.games):
            (root / str(number)).mkdir()
            for storage in STORAGES:
                self.paths[storage, number] = write(root / str(number), storage, games)
            rows = self.rows[number]
            told = np.full(len(rows), 255, np.uint8)  # the last row's next board is not recorded
            for i in range(len(rows) - 1):
                if rows["run_id"][i] == rows["run_id"][i + 1]:
                    told[i] = move_between(rows["exps"][i].tolist(), rows["exps"][i + 1].tolist())
            self.moves.append(told)
            boards = rows["exps"].tolist()
            legal = [sum(1 << move for move in ref.legal_moves(cells)) for cells in boards]
            self.legal.append(np.array(legal, np.uint8))

    def reference(self, picked: list[tuple[str, int]]) -> dict[str, NDArray[Any]]:
        """The columns of all rows, run after run."""
        parts: list[dict[str, NDArray[Any]]] = []
        runs = 0
        for storage, number in picked:
            games, rows = self.games[number], self.rows[number]
            of_run = np.repeat(np.arange(len(games.runs)), games.runs["rows"])
            run = games.runs[of_run]
            part = {name: run[name] for name in ("seed", "steps", "score", "highest_tile")}
            part |= {"step": rows["step_idx"], "exps": rows["exps"], "action": rows["action"]}
            part["run_id"] = of_run.astype(np.uint64) if storage in TABLES else run["run_id"]
            part["move"] = games.moves if storage in WITH_MOVE else self.moves[number]
            part["legal"] = self.legal[number]
            part["turns"] = np.full(len(rows), storage == "others")
            part["told"] = np.full(len(rows), storage not in {"others", "pack"})  # whether the player is
            part["ev_values"], part["board"] = self.values[number], games.boards
            part["run"] = of_run + runs
            parts.append(part)
            runs += len(games.runs)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("sources"))


CONDITIONS: dict[str, Any] = {
    "seed % 3 <> 0": lambda ref: ref["seed"] % 3 != 0,
    "highest_tile >= 128 OR steps < 90": lambda ref: (ref["highest_tile"] >= 128) | (ref["steps"] < 90),
    "player = 'toy@abababababab'": None,  # of those that tell
}
PHASES: list[dict[str, Any]] = [
    {"steps": (7, 60)}, {"steps": (None, 13)}, {"steps": (41, None)}, {"fraction": (0.3, None)},
    {"fraction": (0.1, 0.7)}, {"empties": (2, 7)}, {"empties": (9, None), "steps": (3, 50)},
]  # fmt: skip


class View:
    """A view by masks over the reference: the chosen runs' rows, the phase's, and the selected ones."""

    def __init__(self, rows: dict[str, NDArray[Any]]) -> None:
        self.rows = rows
        count = len(rows["step"])
        self.of_runs, self.selected = np.ones(count, np.bool_), np.ones(count, np.bool_)
        self.phase: dict[str, Any] = {}

    def mask(self) -> NDArray[np.bool_]:
        inside, rows = self.of_runs & self.selected, self.rows
        step = rows["step"].astype(np.int64)
        measures = {
            "steps": step,
            "fraction": step / rows["steps"],
            "empties": (rows["exps"] == 0).sum(axis=1),
        }
        for name, (low, high) in self.phase.items():
            value = measures[name]
            inside = inside & (low is None or value >= low) & (high is None or value < high)
        return inside

    def narrowed(self, source: Any, data: st.DataObject) -> Any:
        """Apply one drawn selection to the source and to these masks, unless it leaves no row."""
        kind = data.draw(st.sampled_from(["where", "mask", "phase", "select", "split"]), "view")
        before = (self.of_runs, self.selected, self.phase)
        match kind:
            case "where":
                condition = data.draw(st.sampled_from([*CONDITIONS][:2]), "condition")
                self.of_runs = self.of_runs & CONDITIONS[condition](self.rows)
                narrow: Any = lambda: source.where(condition)  # noqa: E731
            case "mask":
                kept = np.arange(len(source.runs)) % 3 != 1
                self._keep_runs(kept)
                narrow = lambda: source.where(kept)  # noqa: E731
            case "phase":
                ranges = data.draw(st.sampled_from(PHASES), "phase")
                self.phase = self.phase | ranges
                narrow = lambda: source.phase(**ranges)  # noqa: E731
            case "select":
                chosen = np.arange(len(source)) % 7 < 4
                self.selected = np.zeros_like(self.selected)
                self.selected[np.flatnonzero(View.mask_of(before, self.rows))[chosen]] = True
                narrow = lambda: source.select(chosen)  # noqa: E731
            case _:
                if len(np.unique(source.runs["seed"][source.row_counts > 0])) < 6:
                    return source
                try:
                    parts = source.split(a=0.5, b=0.5)
                except EmptyCorpusError:  # of a half: all are on one side
                    return source
                assert sum(map(len, parts.values())) == len(source)
                ids = [one.runs["session"] * 10**6 + one.runs["run_id"] for one in (source, parts["b"])]
                self._keep_runs(np.isin(*ids))
                rest = before[0] & ~self.of_runs
                identity = self.rows["seed"] * np.uint64(2) + self.rows["told"]
                assert not {*identity[self.of_runs].tolist()} & {*identity[rest].tolist()}
                narrow = lambda: parts["b"]  # noqa: E731
        if not self.mask().any():
            self.of_runs, self.selected, self.phase = before
            return source
        return narrow()

    def _keep_runs(self, kept: NDArray[np.bool_]) -> None:
        present = np.unique(self.rows["run"][self.of_runs])
        self.of_runs = self.of_runs & np.isin(self.rows["run"], present[kept])

    @staticmethod
    def mask_of(state: tuple[Any, ...], rows: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
        view = View(rows)
        view.of_runs, view.selected, view.phase = state
        return view.mask()


PICKED = st.lists(
    st.tuples(st.sampled_from(STORAGES), st.integers(0, 2)), min_size=1, max_size=4, unique=True
)
ORDERS: list[dict[str, Any]] = [{}, {"shuffle": False}, {"pool_rows": 128}, {"world_size": 2}]


@given(
    picked=PICKED,
    load=st.sampled_from(["mmap", "packed", "ram"]),
    order=st.sampled_from(ORDERS),
    kept=st.sampled_from([1 << 20, 5, 1]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_source_serves_its_rows(  # noqa: PLR0917
    made: Made,
    picked: list[tuple[str, int]],
    load: Any,
    order: dict[str, Any],
    kept: int,
    data: st.DataObject,
) -> None:
    """With run tables in memory, and with tables that are read on demand and larger buckets of guides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_columns, "KEPT_RUNS", kept)
        patch.setattr(guide, "_MANY_RANGES", kept)
        _check_source(made, picked, load, order, data)


def _check_source(
    made: Made, picked: list[tuple[str, int]], load: Any, order: dict[str, Any], data: st.DataObject
) -> None:
    paths = [made.paths[each] for each in picked]
    as_tables = all(storage in TABLES for storage, _ in picked) and load != "packed"
    as_tables = as_tables and len({number for _, number in picked}) == len(picked)  # it drops copies
    if as_tables := as_tables and data.draw(st.booleans(), "as a data set"):
        source: Any = Dataset(paths, load)
    else:
        source = Corpus.open(paths, load=load, duplicates="keep")
    assert source.load == load
    view = View(made.reference(picked))
    for _ in range(data.draw(st.integers(0, 3), "views")):
        source = view.narrowed(source, data)
    chosen = view.mask()
    rows = {name: column[chosen] for name, column in view.rows.items()}
    count = int(chosen.sum())
    assert len(source) == count
    _check_runs(source, view, rows)

    seed = data.draw(st.integers(0, 3), "seed")
    numbers = np.random.default_rng(seed).integers(0, count, 300)
    _check_records(source, rows, numbers)
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    np.testing.assert_array_equal(again[::7], source[::7])

    storages = {storage for storage, _ in picked}
    fields = [
        "tokens",
        "labels",
        "row",
        "run",
        "step",
        "legal",
        "move",
        "steps_left",
        "score",
        "highest_tile",
        "board_highest_tile",
        "seed",
    ]
    fields += ["action"] if storages <= {*WITH_ACTION} else []
    fields += ["ev_values"] if storages <= {*TABLES} else []
    _check_fields(source.fetch(numbers, fields, thresholds=(64, 128)), rows, numbers)
    some = [*data.draw(st.lists(st.sampled_from(fields), unique=True), "fields"), "row", "weight"]
    some = list(dict.fromkeys(some))
    ranks = range(order.get("world_size", 1))
    capped = data.draw(st.sampled_from([None, 5]), "capped")
    served: Any = source if capped is None else source.capped(capped)
    seen = []
    for rank in ranks:
        how = {"rank": rank, "world_size": len(ranks)} | order
        batches = served.batches(53, seed=seed, fields=some, thresholds=(64, 128), **how)
        half = len(batches) // 2
        for number, batch in enumerate(batches):
            _check_fields(dict(batch), rows, batch["row"])
            seen.append(np.stack([batch["row"], batch["weight"]]))
            if number == half and rank == 0:
                resumed = served.batches(53, seed=9, fields=some, thresholds=(64, 128), **how)
                resumed.load_state_dict(batches.state_dict())
                rest = [row for each in resumed for row in each["row"].tolist()]
        after = np.concatenate([part[0] for part in seen[half + 1 :]] or [np.empty(0)]) if rank == 0 else None
        assert after is None or rest == after.tolist()
    _check_epoch(np.concatenate(seen, axis=1), rows, capped, dropped=len(ranks) > 1)


def _check_runs(source: Any, view: View, rows: dict[str, NDArray[Any]]) -> None:
    present = np.unique(view.rows["run"][view.of_runs])
    firsts = np.searchsorted(view.rows["run"], present)
    for name in ("seed", "score", "highest_tile", "steps"):
        np.testing.assert_array_equal(source.runs[name], view.rows[name][firsts], name)
    counts = np.bincount(rows["run"], minlength=int(view.rows["run"].max()) + 1)[present]
    np.testing.assert_array_equal(source.row_counts, counts)
    np.testing.assert_array_equal(source.run_index(slice(None)), np.repeat(np.arange(len(present)), counts))
    np.testing.assert_array_equal(source.rows_of(0), source[: counts[0]])
    labels = source.runs["highest_tile"][:, None] >= [64, 128]
    np.testing.assert_allclose(source.prevalence((64, 128)), np.average(labels, axis=0, weights=counts))


def _check_records(source: Any, rows: dict[str, NDArray[Any]], numbers: NDArray[np.int64]) -> None:
    for found, which in ((source.get_batch(numbers), numbers), (source[3:60:2], slice(3, 60, 2))):
        names = {"step_idx": "step", "step_index": "step", "exps": "exps", "board": "board"}
        names |= {"action": "action", "move": "action", "ev_values": "ev_values"}
        for field in set(found.dtype.names) & names.keys():
            np.testing.assert_array_equal(found[field], rows[names[field]][which], field)
        ids = source.runs["run_id"][source.run_index(np.arange(len(source))[which])]
        np.testing.assert_array_equal(found["run_id"], ids)
    if not isinstance(source, Dataset):
        pieces = list(source.pieces(40))
        np.testing.assert_array_equal(np.concatenate(pieces)["exps"], rows["exps"])
        assert max(map(len, pieces)) <= 40


def _check_fields(found: dict[str, Any], rows: dict[str, NDArray[Any]], numbers: NDArray[np.int64]) -> None:
    exps = rows["exps"][numbers]
    tiles = rows["highest_tile"][numbers]
    expected = {
        "tokens": exps, "labels": tiles[:, None] >= [64, 128], "row": numbers, "step": rows["step"][numbers],
        "action": rows["action"][numbers], "score": rows["score"][numbers], "seed": rows["seed"][numbers],
        "steps_left": rows["steps"][numbers] - rows["step"][numbers] - 1,
        "highest_tile": tiles, "legal": rows["legal"][numbers],
        "ev_values": rows["ev_values"][numbers],
        "board_highest_tile": 1 << exps.max(axis=1).astype(np.uint32),
        "run": (np.cumsum(np.diff(rows["run"], prepend=-1) != 0) - 1)[numbers],
    }  # fmt: skip
    for name, values in expected.items():
        if name in found and name != "run":
            np.testing.assert_array_equal(found[name], values, name)
    if "run" in found:  # runs without rows in the view count, too
        order = np.argsort(numbers, kind="stable")
        changes = np.diff(expected["run"][order].astype(np.int64)) > 0
        np.testing.assert_array_equal(np.diff(found["run"][order].astype(np.int64)) > 0, changes)
    if "move" in found:
        # Where runs take turns, the row after a view's last one is not beside it.
        known = (found["move"] != 255) | ~rows["turns"][numbers]
        np.testing.assert_array_equal(found["move"][known], rows["move"][numbers][known])


def _check_epoch(
    seen: NDArray[Any], rows: dict[str, NDArray[Any]], capped: int | None, *, dropped: bool
) -> None:
    """Every row once; or of each run, ``capped`` rows at most, whose weights stand for all."""
    numbers, weights = seen[0].astype(np.int64), seen[1]
    runs, counts = np.unique(rows["run"], return_counts=True)
    due = counts if capped is None else np.minimum(counts, capped)
    assert len(np.unique(numbers)) == len(numbers)
    if dropped:  # ranks serve equally many
        assert int(due.sum()) - 1 <= len(numbers) <= int(due.sum())
        return
    np.testing.assert_array_equal(np.bincount(rows["run"][numbers])[runs], due)
    np.testing.assert_allclose(np.bincount(rows["run"][numbers], weights)[runs], counts, rtol=1e-5)
