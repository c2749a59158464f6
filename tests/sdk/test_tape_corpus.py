"""Corpora of sessions on tape, alone and mixed with rows, against the same sessions as rows."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Corpus, errors
from tape2048.files.npy import rows_header
from tape2048.game.rules import boards_to_exps
from tape2048.loader import FIELDS, buffers as tapes_module
from tape2048.loader.row_view import tables_of
from tape2048.runs.exports import export
from tape2048.session import TapeWriter
from tape2048.session.layout import BLOCK_DTYPE, FORMAT_VERSION, RUN_DTYPE, FileEntry, Manifest
from tape2048.session.metadata_writer import write_metadata

from .builders import embed
from .row_source_contract import Sample, boards_of, check_contract
from .tapes import TapeGames, facts_of, games_on_tape, plain_npy, write_rows

Storage = Literal["rows", "tape"]

NAMES = ("20250102T030405Z_model=a", "20250103T030405Z_model=b", "20250104T030405Z_model=b")
#: Seeds of each session's games; a game is recorded twice.
SEEDS = {NAMES[0]: range(9), NAMES[1]: (3, *range(20, 26)), NAMES[2]: range(40, 52)}
LOADS = ("mmap", "packed", "ram")


def write(directory: Path, games: TapeGames, storage: Storage, *, action: bool = False) -> Path:
    """Write games as a session of rows or on tape."""
    facts = {"player_sha256": "ab" * 32}
    if storage == "rows":
        return write_rows(directory, games, record_action=action, **facts)
    directory.mkdir(parents=True)
    with TapeWriter(directory) as writer:
        writer.add(games.tape, games.runs, games.starts)
        writer.finish(facts_of(games, record_action=action) | facts)
    return directory


class Sessions:
    """Each session in all forms, below one directory each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for storage in ("rows", "tape"):
            for action in (False, True):
                below = self._below(storage, action=action)
                for name, seeds in SEEDS.items():
                    games = games_on_tape(*seeds)
                    rows = len(games.tape)
                    own = np.arange(3 * rows).reshape(rows, 3) + rows  # of each row, and of each session
                    embed(write(below / name, games, storage, action=action), own)

    def _below(self, storage: str, *, action: bool) -> Path:
        return self.root / f"{storage}-{action}"

    def open(self, forms: dict[str, tuple[Storage, bool]], load: Any = "mmap", *where: Any) -> Corpus:
        """Open a form of each of some sessions."""
        paths = [self._below(storage, action=action) / name for name, (storage, action) in forms.items()]
        return Corpus.open(paths, *where, load=load, duplicates="keep")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    return Sessions(tmp_path_factory.mktemp("forms"))


def all_of(storage: Storage, *, action: bool = False) -> dict[str, tuple[Storage, bool]]:
    return dict.fromkeys(NAMES, (storage, action))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("mixed", [False, True])
def test_contract(made: Sessions, load: Any, mixed: bool) -> None:
    """The contract of all sources of rows, for all sessions on tape and for some."""
    forms = all_of("tape") | ({NAMES[1]: ("rows", False)} if mixed else {})
    rows = made.open(all_of("rows", action=not mixed))[:]
    check_contract(Sample(made.open(forms, load), boards_of(rows), rows))


@pytest.mark.parametrize("load", LOADS)
def test_turned_boards_and_columns_are_those_of_rows(made: Sessions, load: Any) -> None:
    """Symmetries and embeddings, which the machine of all sources leaves out."""
    fields = tuple(name for name in FIELDS if name != "action")
    for options in ({"augment": "d4", "fields": fields}, {"fields": ("embeddings", "row", "tokens")}):
        sources = (made.open(all_of(storage), load) for storage in ("tape", "rows"))  # type: ignore[arg-type]
        pairs = (corpus.batches(97, seed=3, thresholds=(64, 128), **options) for corpus in sources)  # type: ignore[arg-type]
        for mine, theirs in zip(*pairs, strict=True):
            for field in options["fields"]:
                np.testing.assert_array_equal(mine[field], theirs[field], field)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("anchor_rows", [1, 2, 64, 4096])
def test_other_distances_of_anchors(tmp_path: Path, anchor_rows: int, load: Any) -> None:
    """Rows are decoded from anchors at any distance, and from their game's start where that is nearer."""
    games = games_on_tape(*range(30))
    session = write(tmp_path / NAMES[0], games, "tape")
    anchors = games.boards[::anchor_rows]
    files = {"anchors.npy": plain_npy("<u8", anchors)}
    (session / "anchors.npy").write_bytes(files["anchors.npy"])
    manifest = json.loads((session / "manifest.json").read_text())
    manifest["anchor_rows"] = anchor_rows
    manifest["files"] |= {name: {"bytes": len(data), "crc32c": crc32c(data)} for name, data in files.items()}
    (session / "manifest.json").write_text(json.dumps(manifest))
    for where in (None, "run_id % 3 = 0"):
        corpus = Corpus.open(tmp_path, where, load=load)
        kept = np.repeat(
            games.runs["run_id"] % 3 == 0 if where else games.runs["run_id"] > 0, games.runs["rows"]
        )
        expected = boards_to_exps(games.boards[kept])
        np.testing.assert_array_equal(corpus.tokens(slice(None)), expected)
        numbers = np.random.default_rng(1).permutation(len(expected))
        np.testing.assert_array_equal(corpus.tokens(numbers), expected[numbers])
        np.testing.assert_array_equal(corpus.get_batch(numbers)["exps"], expected[numbers])
        few = np.flatnonzero((expected == 0).sum(axis=1) < 6)
        np.testing.assert_array_equal(corpus.phase(empties=(0, 6)).tokens(slice(None)), expected[few])


def test_the_largest_storage_that_fits(made: Sessions) -> None:
    rows = len(made.open(all_of("tape")))
    bytes_and_anchors = rows + rows * 8 // 16

    def load(budget: int, **forms: tuple[Storage, bool]) -> str:
        paths = [session.path for session in made.open(all_of("tape") | forms).sessions]
        return Corpus.open(paths, ram_budget=budget, duplicates="keep").load

    assert [load(8 * rows), load(8 * rows - 1)] == ["packed", "ram"]
    assert [load(bytes_and_anchors), load(bytes_and_anchors - 1), load(0)] == ["ram", "mmap", "mmap"]
    # With rows among them: as with rows alone.
    mixed: Any = {NAMES[0]: ("rows", False)}
    assert [load(28 * rows, **mixed), load(8 * rows, **mixed)] == ["ram", "packed"]


@pytest.mark.parametrize("load", ["ram", "packed"])
def test_progress_counts_rows_of_both_kinds(made: Sessions, load: Any) -> None:
    seen: list[tuple[int, int]] = []
    forms = all_of("tape") | {NAMES[1]: ("rows", False)}
    corpus = made.open(forms)
    sizes = [len(session) * (28 if session.name == NAMES[1] else 1) for session in corpus.sessions]
    paths = [session.path for session in corpus.sessions]
    Corpus.open(paths, load=load, duplicates="keep", progress=lambda *now: seen.append(now))
    assert seen[-1] == (sum(sizes), sum(sizes))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


class TestPacked:
    @pytest.fixture(autouse=True)
    def _small_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tapes_module, "_JOB_ROWS", 300)
        monkeypatch.setattr(tapes_module, "_JOB_SPAN_SHIFT", 10)

    def test_only_the_chosen_runs_are_decoded(self, made: Sessions) -> None:
        found = made.open(all_of("tape"), "packed", "run_id % 3 = 0")
        rows = made.open(all_of("rows"), "mmap", "run_id % 3 = 0")
        assert sum(array.size for array in tables_of(found).store.boards.memory) == len(found)
        np.testing.assert_array_equal(found.tokens(slice(None)), rows.tokens(slice(None)))

    def test_a_wrong_byte_is_found(self, tmp_path: Path) -> None:
        games = games_on_tape(*range(10))
        session = write(tmp_path / NAMES[0], games, "tape")
        row = int(games.runs["first_row"][6]) + 20
        with (session / "tape.npy").open("rb+") as file:
            file.seek(128 + row)
            file.write(bytes([games.tape[row] | 0x80]))
        assert len(Corpus.open(tmp_path, load="mmap").tokens([row])) == 1
        with pytest.raises(
            errors.FieldError, match=f"run {games.runs['run_id'][6]}, step 20: .* bit 7"
        ) as caught:
            Corpus.open(tmp_path, load="packed")
        assert (caught.value.path, caught.value.offset) == (str(session / "tape.npy"), 128 + row)
        write(tmp_path / NAMES[1], games, "tape")
        rest = Corpus.open(tmp_path, load="packed", damaged="skip")
        assert [session.name for session in rest.sessions] == [NAMES[1]]
        assert [(str(path), type(error)) for path, error in rest.skipped] == [
            (str(session), errors.FieldError)
        ]
        # Of the other runs, none is wrong.
        assert len(Corpus.open(tmp_path, f"run_id <> {games.runs['run_id'][6]}", load="packed"))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", ["tape.npy", "anchors.npy"])
def test_a_file_that_is_cut_is_noticed(tmp_path: Path, name: str, load: Any) -> None:
    write(tmp_path / NAMES[0], games_on_tape(*range(10)), "tape")
    corpus = Corpus.open(tmp_path, load=load)
    rows = corpus[:]
    path = tmp_path / NAMES[0] / name
    os.truncate(path, path.stat().st_size - 1)
    batches = corpus.batches(64, fields=("tokens", "step"))
    if load == "ram":
        np.testing.assert_array_equal(corpus[:], rows)
        next(iter(batches))
        return
    with pytest.raises(errors.CorpusError) as caught:
        next(iter(batches))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("load", ["mmap", "ram"])
def test_a_wrong_byte_is_named_by_whatever_decodes_it(tmp_path: Path, load: Any) -> None:
    games = games_on_tape(*range(40))
    session = write(tmp_path / NAMES[0], games, "tape")
    row = int(games.runs["first_row"][17]) + 50
    with (session / "tape.npy").open("rb+") as file:
        file.seek(128 + row)
        file.write(bytes([games.tape[row] ^ 0x40 | 0x80]))
    last = games.runs["run_id"].max()  # without it, a block is not read as a whole, and has no known checksum
    corpus = Corpus.open(tmp_path, f"run_id < {last}", load=load)
    near = row // 16 * 16 + 15
    assert len(corpus.tokens(np.setdiff1d(np.arange(len(corpus)), np.arange(row, near + 1)))) > 1000
    ways: list[Any] = [
        lambda: corpus.tokens([near]),
        lambda: corpus.get_batch([3, near, 4]),
        lambda: corpus[row - 3 : near + 1],
        lambda: list(corpus.batches(64)),
        lambda: list(corpus.batches(64, fields=("move", "tokens"), shuffle=False)),
        lambda: list(corpus.batches(64, pool_rows=1024)),
        lambda: corpus.phase(empties=(0, 4)),
    ]
    for way in ways:
        with pytest.raises(
            errors.FieldError, match=f"run {games.runs['run_id'][17]}, step 50: .* bit 7"
        ) as caught:
            way()
        assert (caught.value.path, caught.value.offset) == (str(session / "tape.npy"), 128 + row)


@pytest.mark.parametrize("load", LOADS)
def test_any_bytes_are_safe(tmp_path: Path, load: Any) -> None:
    """Noise for tape and anchors is an error, and nothing worse."""
    games = games_on_tape(*range(10))
    session = write(tmp_path / NAMES[0], games, "tape")
    rng = np.random.default_rng(5)
    (session / "tape.npy").write_bytes(plain_npy("|u1", np.frombuffer(rng.bytes(len(games.tape)), np.uint8)))
    anchors = rng.integers(0, 2**64, len(games.boards[::16]), np.uint64)
    at = games.runs["first_row"][games.runs["first_row"] % 16 == 0] // 16  # which opening compares
    anchors[at] = games.boards[::16][at]
    (session / "anchors.npy").write_bytes(plain_npy("<u8", anchors))
    if load != "mmap":
        with pytest.raises(errors.FormatError):
            Corpus.open(tmp_path, load=load)
        return
    corpus = Corpus.open(tmp_path, load=load)
    with pytest.raises(errors.FormatError):
        corpus.phase(empties=(0, 17))
    refused = 0
    for row in range(0, len(games.tape), 5):
        try:
            corpus.get_batch([row])
        except errors.FormatError:
            refused += 1
    assert refused > 100


def test_more_rows_than_32_bits_count(tmp_path: Path) -> None:
    """A tape of 1e10 bytes, all but its last games a hole in the file."""
    games = games_on_tape(*range(8))
    hole = 262_141  # rows of a game that is never decoded
    count = 10**10 // hole
    runs = np.zeros(count + len(games.runs), RUN_DTYPE)
    runs[count:] = games.runs
    runs["run_id"] = runs["seed"] = np.arange(len(runs))
    runs["rows"][:count] = runs["steps"][:count] = hole
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    before, rows = count * hole, count * hole + len(games.tape)
    starts = np.append(np.full(count, games.starts[0]), games.starts)
    anchors = games.boards[-before % 16 :: 16]
    session = tmp_path / NAMES[0]
    session.mkdir()
    for name, header, place, data in (
        ("tape.npy", rows_header(np.dtype("u1"), rows, 128), before, games.tape),
        ("anchors.npy", rows_header(np.dtype("<u8"), -(-rows // 16), 128), -(-before // 16) * 8, anchors),
    ):
        with (session / name).open("wb") as file:
            file.write(header)
            file.seek(len(header) + place)
            file.write(data.tobytes())
    with (session / "anchors.npy").open("rb+") as file:
        for row in runs["first_row"][:count][::16].tolist():  # those of games that begin at an anchor
            file.seek(128 + row // 16 * 8)
            file.write(starts[0].tobytes())
    facts = {"storage": "tape", "rows": rows, "runs": len(runs)}
    blocks = np.array([(first, min(2**31, rows - first), 0) for first in range(0, rows, 2**31)], BLOCK_DTYPE)
    write_metadata(session / "metadata.db", runs=runs, blocks=blocks, session=facts, start_boards=starts)
    sizes = {path.name: FileEntry(path.stat().st_size, 0) for path in session.iterdir()}
    (session / "manifest.json").write_bytes(
        msgspec.json.encode(Manifest(FORMAT_VERSION, rows, len(runs), sizes, 16))
    )

    corpus = Corpus.open(tmp_path, load="mmap")
    assert len(corpus) == rows > 2**33
    numbers = before + np.random.default_rng(0).permutation(len(games.tape))
    expected = boards_to_exps(games.boards)
    found = corpus.fetch(numbers, ("tokens", "run", "step", "row", "labels"), thresholds=(128,))
    np.testing.assert_array_equal(found["tokens"], expected[numbers - before])
    run = np.searchsorted(runs["first_row"], numbers, "right") - 1
    np.testing.assert_array_equal(found["run"], run)
    np.testing.assert_array_equal(found["step"], numbers - runs["first_row"][run].astype(np.int64))
    np.testing.assert_array_equal(found["row"], numbers)
    np.testing.assert_array_equal(found["labels"][:, 0], runs["highest_tile"][run] >= 128)
    np.testing.assert_array_equal(corpus[before + 5 : before + 900]["exps"], expected[5:900])
    places = next(iter(corpus.batches(4096, seed=1, fields=("row",))))["row"]
    assert len(np.unique(places)) == 4096
    assert places.max() > 2**32
    last = corpus.where(f"run_id >= {count}")
    np.testing.assert_array_equal(last.phase(empties=(0, 7)).tokens(slice(None)),
                                  expected[(expected == 0).sum(axis=1) < 7])  # fmt: skip
    # All rows of the hole follow on wrong ones.
    with pytest.raises(errors.ReplayError, match=f"run {count - 1}, step 0: a tile appears in cell 0"):
        corpus.tokens([before - 1])


def test_identity_of_tapes_as_before(made: Sessions) -> None:
    """Trainings and critics continue with sessions whose records had no action, and critics know them."""
    for action, due in ((False, "6cd69da2449db45f"), (True, "8d1b4e6441d415b8")):
        assert made.open(all_of("tape", action=action)).identity[:16] == due


def test_an_export_is_that_of_the_rows(made: Sessions, tmp_path: Path) -> None:
    for storage in ("rows", "tape"):
        corpus = made.open(all_of(storage, action=storage == "rows")).phase(steps=(3, 50))  # type: ignore[arg-type]
        export(corpus, tmp_path / f"{storage}.csv", format="csv", thresholds=(64, 128))
    assert (tmp_path / "tape.csv").read_bytes() == (tmp_path / "rows.csv").read_bytes()
