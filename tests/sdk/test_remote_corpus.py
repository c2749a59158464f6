"""Corpora of stores: the batches of a local corpus, through a bounded cache that processes share."""

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.crashes import at_system_call

from tape2048 import Corpus, Session
from tape2048.errors import (
    ChecksumError,
    ColumnError,
    CorpusError,
    EmptyCorpusError,
    ManifestError,
    MissingPathError,
    StorageError,
    StoreError,
    TapeError,
    TruncatedError,
)
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import remove_sessions
from tape2048.session.column_draft import write_column
from tape2048.stores import remote as caches, remote_session
from tape2048.stores.objects import DirectoryStore, Store, open_store
from tape2048.stores.remote import (
    SessionCache,
    list_sessions,
    put_session,
    read_manifest,
)
from tape2048.stores.remote_session import RemoteSession

from ..tools.small_sessions import fill_store
from .row_source_contract import Sample, boards_of, check_contract
from .store_servers import CLOUDS, KINDS, Watch, hub_server, s3_environment, size_of, store_url
from .tapes import games_on_tape
from .test_tape_corpus import write

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = [f"2025010{day}T030405Z_model={tag}" for day, tag in enumerate("abcdef", start=1)]


def make_sessions(root: Path) -> Path:
    """Six sessions: on tape, as rows, as rows with the move."""
    for number, name in enumerate(NAMES):
        games = games_on_tape(*range(10 * number, 10 * number + 5))
        write(root / name, games, "rows" if number % 3 else "tape", action=number % 3 == 2)
    return root


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sessions(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module", params=KINDS)
def url(
    request: pytest.FixtureRequest, local: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with store_url(request.param, tmp_path_factory.mktemp("stores") / "place") as found:
        put_all(open_store(found), local)
        yield found


def put_all(store: Store, local: Path) -> None:
    for path in sorted(local.iterdir()):
        put_session(store, path, "00000a")


@pytest.fixture
def place(local: Path, tmp_path: Path) -> str:
    """A directory as a store of its own, which a test may damage."""
    (tmp_path / "store").mkdir()
    put_all(open_store(str(tmp_path / "store")), local)
    return str(tmp_path / "store")


@pytest.fixture
def kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of caches count in kB, for the small sessions of tests."""
    monkeypatch.setattr(caches, "MEGABYTE", 1000)


def sizes(local: Path) -> list[int]:
    return [size_of(path) for path in sorted(local.iterdir())]


def cached(cache: Path) -> list[str]:
    """The sessions in a cache, by their local names; anything half is an error."""
    found = sorted(path.name for path in cache.iterdir() if path.name not in {".recorder", ".tables"})
    assert not [name for name in found if name.startswith(".")]
    return [name.split(".")[0] for name in found]


def digest(batches: Any) -> str:
    """Everything that an epoch serves."""
    made = hashlib.sha256()
    for batch in batches:
        for name in batch:
            made.update(name.encode() + batch[name].tobytes())
    return made.hexdigest()


@pytest.fixture(scope="module")
def shared(local: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and room for a cache beside it."""
    root = tmp_path_factory.mktemp("shared")
    (root / "store").mkdir()
    put_all(open_store(str(root / "store")), local)
    return root


@pytest.mark.parametrize("load", ["mmap", "packed", "ram"])
def test_it_keeps_the_contract_of_all_sources(local: Path, shared: Path, load: Any) -> None:
    rows = Corpus.open(local, load="ram")[:]
    found = Corpus.open(str(shared / "store"), load=load, cache=shared / "cache")
    check_contract(Sample(found, boards_of(rows), rows))


ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"pool_rows": 512},
    {"pool_rows": 512, "pool_sessions": 1},
    {"pool_rows": 512, "pool_sessions": 2, "rank": 1, "world_size": 2},
    {"augment": "d4", "fields": ("tokens", "legal", "run", "row", "step", "weight")},
    {"fields": ("tokens", "move"), "shuffle": False},
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_batches_are_those_of_a_local_corpus(
    local: Path, url: str, tmp_path: Path, order: dict[str, Any]
) -> None:
    mine = Corpus.open(local)
    there = Corpus.open(url, cache=tmp_path)
    assert there.identity == mine.identity
    assert not cached(tmp_path), "run tables suffice to open it"
    views = [
        lambda c: c, lambda c: c.where("run_id % 3 <> 0"), lambda c: c.phase(fraction=(0.2, 0.9)),
        lambda c: c.split(train=0.5, val=0.5)["val"], lambda c: c.capped(20),
        lambda c: c.phase(empties=(2, 9)), lambda c: c.select(np.arange(len(c)) % 3 > 0),
        lambda c: c.rows_where("step > 9 AND tokens[3] = 0").capped(8, by="highest"),
    ]  # fmt: skip
    for view in views:
        a, b = view(mine).batches(64, seed=5, **order), view(there).batches(64, seed=5, **order)
        assert len(a) == len(b)
        for _ in range(2):  # epochs
            assert digest(a) == digest(b)


@pytest.mark.parametrize("kind", CLOUDS)
def test_other_clouds_serve_the_same_batches(kind: str, local: Path, tmp_path: Path) -> None:
    order: dict[str, Any] = {"batch_size": 100, "seed": 3, "pool_rows": 512, "pool_sessions": 2}
    with store_url(kind, tmp_path / "place") as url:
        put_all(open_store(url), local)
        corpus = Corpus.open(url, cache=tmp_path / "cache")
        assert digest(corpus.batches(**order)) == digest(Corpus.open(local).batches(**order))
        open_store(url).remove(f"sessions/{corpus.sessions[0].name}/manifest.json")
        assert len(Corpus.open(url, cache=tmp_path / "cache").sessions) == len(NAMES) - 1


def test_a_hub_serves_published_sessions(local: Path, tmp_path: Path) -> None:
    """Directories as `hf upload` leaves them, and a store. Replaced files are found or read again."""
    order: dict[str, Any] = {"batch_size": 100, "seed": 3}
    expected = digest(Corpus.open(local).batches(**order))
    shutil.copytree(local, tmp_path / "hub")
    (tmp_path / "hub/README.md").write_text("a card")
    with hub_server(tmp_path / "hub") as address, s3_environment(address, "hf"):
        place = "hf://datasets/USER/NAME"
        corpus = Corpus.open(place, cache=tmp_path / "cache")
        assert [session.name.split("..")[0] for session in corpus.sessions] == NAMES
        assert digest(corpus.batches(**order)) == expected
        again = pickle.loads(pickle.dumps(corpus))  # noqa: S301
        assert digest(again.batches(**order)) == expected
        one = Corpus.open(f"{place}/{NAMES[1]}", cache=tmp_path / "cache")
        assert [session.name for session in one.sessions] == [corpus.sessions[1].name]
        tape = tmp_path / "hub" / NAMES[0] / "tape.npy"
        tape.write_bytes(tape.read_bytes()[:-1] + b"\xff")
        with pytest.raises(ChecksumError, match=f"{place}/{NAMES[0]}/tape.npy"):
            Corpus.open(place, cache=tmp_path / "other", load="ram")
        (tmp_path / "hub" / NAMES[0] / "manifest.json").write_text("{}")
        with pytest.raises(ManifestError, match=r"manifest\.json"):
            Corpus.open(place, cache=tmp_path / "cache")
        shutil.rmtree(tmp_path / "hub" / NAMES[0])
        assert len(Corpus.open(place, cache=tmp_path / "cache").sessions) == len(NAMES) - 1
        with pytest.raises(EmptyCorpusError, match="no session here"):
            Corpus.open(f"{place}/nowhere", cache=tmp_path / "cache")
    with hub_server(tmp_path / "nothing") as address, s3_environment(address, "hf"):
        (tmp_path / "nothing").mkdir()
        put_all(open_store(str(tmp_path / "nothing")), local)
        assert digest(Corpus.open(place, cache=tmp_path / "third").batches(**order)) == expected


def test_sessions_have_the_order_of_a_directory(local: Path, tmp_path: Path) -> None:
    """Also those that a recorder published within a second, whose names have a number."""
    names = [f"{NAMES[0]}{more}" for more in ("-10", "", "-2")]
    for name, source in zip(names, NAMES, strict=False):
        shutil.copytree(local / source, tmp_path / "local" / name)
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    put_all(store, tmp_path / "local")
    mine = Corpus.open(tmp_path / "local")
    there = Corpus.open(store.url, cache=tmp_path / "cache")
    assert there.identity == mine.identity
    assert digest(there.batches(64, seed=1)) == digest(mine.batches(64, seed=1))
    assert [name.split(".")[0] for name in list_sessions(store)] == [
        session.name for session in mine.sessions
    ]


def test_only_sessions_with_selected_runs_are_fetched(url: str, tmp_path: Path) -> None:
    corpus = Corpus.open(url, f"session LIKE '{NAMES[3]}%' OR session LIKE '{NAMES[1]}%'", cache=tmp_path)
    assert len(corpus.sessions) == len(NAMES)
    assert digest(corpus.batches(64))
    assert cached(tmp_path) == [NAMES[1], NAMES[3]]
    other = tmp_path / "other"
    Corpus.open(url, f"session LIKE '{NAMES[2]}%'", load="ram", cache=other)
    assert cached(other) == [NAMES[2]]


def test_one_session_its_rows_and_labels(local: Path, url: str, tmp_path: Path) -> None:
    name = list_sessions(open_store(url))[2]
    (there,) = Corpus.open(f"{url}/sessions/{name}", cache=tmp_path).sessions
    mine = Session.open(local / NAMES[2])
    assert isinstance(there, RemoteSession)
    assert (there.runs == mine.runs).all()
    assert (there.labels([256]) == mine.labels([256])).all()
    assert not cached(tmp_path)
    assert (there.tokens([3, 1]) == mine.tokens([3, 1])).all()
    assert (there.steps == mine.steps).all()
    assert cached(tmp_path) == [NAMES[2]]
    again = pickle.loads(pickle.dumps(there))  # noqa: S301 - what this test has made
    assert (again.moves([5]) == mine.moves([5])).all()


def test_a_store_s_directory_opens_without_a_cache(place: str, local: Path) -> None:
    store = open_store(place)
    store.put(f"removed/{list_sessions(store)[0]}.json", b"{}")
    found = Corpus.open(place)
    assert not any(isinstance(session, RemoteSession) for session in found.sessions)
    assert found.identity == Corpus.open([local / name for name in NAMES[1:]]).identity


def test_columns_of_a_store_are_in_the_overlay(place: str, tmp_path: Path) -> None:
    corpus = Corpus.open(place, cache=tmp_path / "cache", columns=tmp_path / "columns")
    session = corpus.sessions[-1]
    assert list(session.columns) == []
    found = write_column(session, "mine", np.arange(len(session)))
    assert found.path == tmp_path / "columns" / session.name / "mine.i64.npy"
    assert cached(tmp_path / "cache") == [], "no rows were fetched"
    there = pickle.loads(pickle.dumps(corpus))  # noqa: S301 - our own
    for each in (there, Corpus.open(place, cache=tmp_path / "other", columns=tmp_path / "columns")):
        assert each.sessions[-1].column("mine").values.tolist() == list(range(len(session)))
    bare = Corpus.open(place, cache=tmp_path / "cache").sessions[-1]
    with pytest.raises(ColumnError, match="no column 'mine'"):
        bare.column("mine")
    with pytest.raises(ColumnError, match="sessions in a store have no directory for columns") as caught:
        write_column(bare, "mine", np.arange(len(session)))
    assert "columns=DIR" in str(caught.value.hint)


@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=12), pool_sessions=st.integers(1, 13),
    pool_rows=st.integers(2, 200), world=st.integers(1, 3), epoch=st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_windows_serve_every_row_once(
    rows: list[int], pool_sessions: int, pool_rows: int, world: int, epoch: int
) -> None:
    """The chunks of a window come together; it has rows of at most so many sessions, or is one chunk."""
    from tape2048.loader.pool import PoolReader

    class Rows:
        """What a reader asks its gatherer for while it plans."""

        takes_boards = False
        fetches = False
        session_starts = np.cumsum([0, *rows])

        def sessions_between(self, first: int, end: int) -> list[int]:
            return [i for i, n in enumerate(rows) if n and starts[i] < end and starts[i + 1] > first]

        def size_of(self, sessions: list[int]) -> int:
            return len(sessions)

        def check_fits(self, sessions: set[int], hint: str) -> None:
            pass

    starts = Rows.session_starts.tolist()
    total = sum(rows)
    if total < world:
        return
    gatherer: Any = Rows()
    served: list[int] = []
    by_rank: list[list[list[int]]] = []
    for rank in range(world):
        try:
            reader = PoolReader(
                gatherer, total, pool_rows=pool_rows, pool_sessions=pool_sessions, ranks=(rank, world)
            )
        except ValueError as error:
            assert "two chunks" in str(error)  # noqa: PT017
            return
        plan = reader._plan_epoch(9, epoch, 0)
        by_rank.append([chunk for pool in plan.chunks for chunk in pool.tolist()])  # type: ignore[misc]
        served += by_rank[-1]  # type: ignore[arg-type]
        windows, shift = reader._windows.tolist(), reader._shift
    assert sorted(served) == list(range(-(-total // (1 << shift))))  # type: ignore[type-var]
    for first, end in itertools.pairwise(windows):
        needed = gatherer.sessions_between(first << shift, min(end << shift, total))
        assert len(needed) <= pool_sessions or end == first + 1
    if world == 1 and pool_rows < 4:  # pools of one chunk keep the order of the chunks
        which = [int(np.searchsorted(windows, chunk, "right")) for chunk in by_rank[0]]
        assert len(list(itertools.groupby(which))) == len(windows) - 1


def test_a_windowed_epoch_fetches_sessions_once(
    local: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: None
) -> None:
    fetched: list[str] = []
    original = SessionCache._fetch

    def counting(self: SessionCache, store: Store, name: str, *more: Any) -> Any:
        fetched.append(name)
        return original(self, store, name, *more)

    monkeypatch.setattr(SessionCache, "_fetch", counting)
    Corpus.open(place, cache=tmp_path / "cache")  # the run tables, which are large beside these sessions
    bound = size_of(tmp_path / "cache") + sum(sorted(sizes(local))[-4:])
    corpus = Corpus.open(place, cache=tmp_path / "cache", cache_max_mb=bound // 1000 + 1)
    batches = corpus.batches(64, seed=1, pool_rows=512, pool_sessions=2)
    assert digest(batches) == digest(Corpus.open(local).batches(64, seed=1, pool_rows=512, pool_sessions=2))
    assert set(fetched) == {Path(path).name for path in (Path(place) / "sessions").iterdir()}
    assert len(fetched) <= len(NAMES) + 4, "a window's edge may lie within a session"


def test_run_tables_stay_within_the_bound(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: None
) -> None:
    """Also while they are fetched: each takes its part of the room that was made for all."""
    Corpus.open(place, cache=tmp_path / "whole")
    bound = size_of(tmp_path / "whole") // 1000 + 1
    cache, original, read = tmp_path / "cache", DirectoryStore.chunks, list[str]()
    watch = Watch(cache)

    def looking(self: DirectoryStore, key: str) -> Iterator[bytes]:
        yield from original(self, key)
        if key.endswith("metadata.db"):
            read.append(key)
            watch.look()

    monkeypatch.setattr(DirectoryStore, "chunks", looking)
    Corpus.open(place, cache=cache, cache_max_mb=bound)
    assert len(read) == len(NAMES)
    assert 0 < watch.most <= bound * 1000


def test_the_cache_drops_the_least_recently_used(
    local: Path, place: str, tmp_path: Path, kilobytes: None
) -> None:
    cache = tmp_path / "cache"
    Corpus.open(place, cache=cache)
    bound = size_of(cache) + sum(sorted(sizes(local))[-3:])
    bound += -bound % 1000
    corpus = Corpus.open(place, cache=cache, cache_max_mb=bound // 1000)
    starts = np.searchsorted(corpus.runs["session"], range(len(NAMES)))
    firsts = corpus.row_starts[starts].tolist()
    tables, here = size_of(cache), list[int]()
    with Watch(cache) as watch:
        for number in (0, 1, 2, 0, 3, 4, 0, 5, 1):
            assert corpus[firsts[number]] is not None
            # The plain definition: the least recently used go until there is room.
            others = [each for each in here if each != number]
            while number not in here and tables + sum(sizes(local)[i] for i in (*others, number)) > bound:
                others.pop(0)
            here = [*others, number]
            assert cached(cache) == sorted(NAMES[each] for each in here)
    assert 0 < watch.most <= bound


def test_held_sessions_stay_and_the_error_says_so(
    local: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: None
) -> None:
    monkeypatch.setattr(caches, "_PATIENCE_S", 0.2)
    cache = tmp_path / "cache"
    names = sorted(NAMES, key=lambda name: size_of(local / name))[-4:]
    Corpus.open(place, cache=cache)  # the run tables, which are large beside these sessions
    bound = sum(size_of(local / name) for name in names[1:]) // 1000 + 5
    *some, last = (
        Corpus.open(place, f"session LIKE '{name}%'", cache=cache, cache_max_mb=bound) for name in names
    )
    held = [iter(corpus.batches(16)) for corpus in some]
    before = [next(batches)["tokens"].copy() for batches in held]
    with pytest.raises(CorpusError, match="sessions in use take"):
        next(iter(last.batches(16)))
    assert len(before) == 3
    held.clear()
    assert len(next(iter(last.batches(16)))["tokens"])


def test_orders_too_large_for_the_cache(local: Path, place: str, tmp_path: Path, kilobytes: None) -> None:
    bound = (sum(sorted(sizes(local))[-4:]) + 20_000) // 1000
    corpus = Corpus.open(place, cache=tmp_path / "cache", cache_max_mb=bound)
    for options in ({}, {"pool_rows": 512}, {"pool_rows": 512, "pool_sessions": 5}):
        with pytest.raises(CorpusError, match=r"6 sessions: rows in this order .* MB at once") as caught:
            corpus.batches(64, **options)
        assert "pool_sessions" in str(caught.value.hint)
    for load in ("ram", "packed"):
        with pytest.raises(CorpusError, match="read together"):
            Corpus.open(place, load=load, cache=tmp_path / "cache", cache_max_mb=bound)
    assert not cached(tmp_path / "cache"), "before anything was fetched"
    assert digest(corpus.batches(64, pool_rows=512, pool_sessions=2))
    assert digest(corpus.batches(64, shuffle=False))
    with pytest.raises(CorpusError, match="the field move"):
        corpus.batches(64, pool_rows=512, pool_sessions=1, fields=("tokens", "move"))
    with pytest.raises(CorpusError, match="MB at once"):
        Corpus.open(place, cache=tmp_path / "tiny", cache_max_mb=0)
    with pytest.raises(ValueError, match="cache_max_mb=-1"):
        Corpus.open(place, cache=tmp_path / "cache", cache_max_mb=-1)
    with pytest.raises(ValueError, match="pool_sessions needs pool_rows"):
        corpus.batches(64, pool_sessions=1)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_session_that_is_removed_while_it_is_taken(place: str, tmp_path: Path, is_there: bool) -> None:
    """Before each system call in turn: what is taken is there, and stays."""
    store, name = open_store(place), first_name(place)
    manifest, _ = read_manifest(store, name)
    cache = SessionCache(tmp_path, None)
    target = tmp_path / name
    removed = []

    def remove() -> None:
        with contextlib.suppress(FileNotFoundError), RemovalLock(tmp_path) as lock:
            removed.extend(each.gone for each in remove_sessions(tmp_path, [target], lock))

    cache.take(store, name, manifest)
    for number in itertools.count(1):
        if not is_there:
            remove()
        removed.clear()
        with at_system_call(number, remove) as calls:
            held = cache.take(store, name, manifest)
        assert held.lock is not None
        assert {path.name for path in target.iterdir()} == {"manifest.json", *manifest.files}
        gone = list(removed)
        remove()
        assert removed[len(gone) :] == [False], "it is held"
        del held
        if len(calls) < number:
            break
    assert number > 8


READER = """
import sys, hashlib
from tape2048 import Corpus
from tape2048.stores import remote as caches
from tests.sdk.test_remote_corpus import digest
caches.MEGABYTE, caches._PATIENCE_S = 1000, 300.0
url, where, bound, seed = sys.argv[1:]
corpus = Corpus.open(url, cache=where, cache_max_mb=int(bound))
print(digest(corpus.batches(64, seed=int(seed), pool_rows=512, pool_sessions=1)))
"""


def test_processes_share_a_cache(local: Path, place: str, tmp_path: Path) -> None:
    cache, mine = tmp_path / "cache", Corpus.open(local)
    # First: this compiles what the children then find compiled.
    expected = [digest(mine.batches(64, seed=seed, pool_rows=512, pool_sessions=1)) for seed in range(2)]
    Corpus.open(place, cache=cache)  # the run tables, which are large beside these sessions
    bound = (sum(sorted(sizes(local))[-4:]) + size_of(cache)) // 1000 + 1
    with Watch(cache) as watch:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", READER, place, str(cache), str(bound), str(seed)],
                cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for seed in range(2)
        ]  # fmt: skip
        found = [child.communicate(timeout=400) for child in children]
    assert not any(child.returncode for child in children), found
    for (said, wrong), digests in zip(found, expected, strict=True):
        assert said.split() == [digests], wrong
    assert 0 < watch.most <= bound * 1000
    cached(cache)


SLOW = """
import sys, time
from tape2048 import Corpus
from tape2048.stores.objects import DirectoryStore
whole = DirectoryStore.chunks
def slowly(self, key):
    for data in whole(self, key):
        if key.endswith(sys.argv[3]):
            yield data[: len(data) // 2]
            print("half", flush=True)
            time.sleep(60)
        yield data
DirectoryStore.chunks = slowly
Corpus.open(sys.argv[1], cache=sys.argv[2]).get_batch([0])
"""


@pytest.mark.parametrize("file", ["tape.npy", "anchors.npy", "metadata.db"])
def test_a_reader_that_is_killed_leaves_nothing_half(
    local: Path, place: str, tmp_path: Path, kilobytes: None, file: str
) -> None:
    cache = tmp_path / "cache"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, place, str(cache), file], cwd=CHECKOUT, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.read(4) == b"half"  # several threads may say so
        child.send_signal(signal.SIGKILL)
    left = [path for path in cache.rglob("*") if path.name.endswith(".tmp")]
    assert left, "what the process was writing"
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")]
    bound = (sum(sizes(local)[:1]) + size_of(cache / ".tables") + 200_000) // 1000
    corpus = Corpus.open(place, cache=cache, cache_max_mb=bound)
    assert (corpus.get_batch([0]) == Corpus.open(local).get_batch([0])).all()
    assert NAMES[0] in cached(cache)
    assert not [path for path in left if path.exists()]


def test_leftovers_of_killed_readers_are_removed(place: str, tmp_path: Path, kilobytes: None) -> None:
    cache = tmp_path / "cache"
    corpus = Corpus.open(place, cache=cache)
    for name in (".other.fetching", ".another.removed"):
        (cache / name).mkdir()
        (cache / name / "tape.npy").write_bytes(bytes(10_000_000))
    corpus.sessions[0].source.cache.max_mb = 10_000  # type: ignore[attr-defined]
    assert len(corpus.get_batch([0]))
    assert cached(cache) == [NAMES[0]]


@pytest.mark.parametrize("link", [f"{NAMES[0]}.00000a", ".tables"])
def test_links_in_the_cache_are_not_followed(place: str, tmp_path: Path, link: str) -> None:
    cache, theirs = tmp_path / "cache", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    cache.mkdir()
    if link != ".tables":
        (name,) = [name for name in list_sessions(open_store(place)) if name.startswith(link)]
        link = f".{name}.{'0' * 16}.tmp"
    (cache / link).symlink_to(theirs)
    with pytest.raises(StorageError, match="expected a directory of user"):
        Corpus.open(place, cache=cache).get_batch([0])
    assert [path.name for path in theirs.iterdir()] == ["file"]
    assert (cache / link).is_symlink()


def test_a_key_too_long_for_a_file_is_one_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, original = f"{'x' * 300}.00000a.{'0' * 16}/manifest.json", DirectoryStore._names

    def names(self: DirectoryStore, path: Path) -> dict[str, int]:
        return original(self, path) | ({long: 10} if path.name == "sessions" else {})

    monkeypatch.setattr(DirectoryStore, "_names", names)
    corpus = Corpus.open(place, cache=tmp_path / "cache", damaged="skip")
    assert len(corpus.sessions) == len(NAMES)
    ((path, error),) = corpus.skipped
    assert path.name == long.partition("/")[0]
    assert "File name too long" in str(error)


def test_two_that_want_one_session_fetch_it_once(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    original = SessionCache._fetch

    def slow(self: SessionCache, *args: Any) -> Any:
        fetched.append(args[1])
        time.sleep(0.3)
        return original(self, *args)

    monkeypatch.setattr(SessionCache, "_fetch", slow)
    corpora = [Corpus.open(place, cache=tmp_path / "cache") for _ in range(4)]
    threads = [threading.Thread(target=corpus.get_batch, args=([0],)) for corpus in corpora]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1


def test_a_forked_child_reads_on(local: Path, url: str, tmp_path: Path) -> None:
    corpus = Corpus.open(url, cache=tmp_path)
    batches = corpus.batches(64, seed=2)
    first = next(iter(batches))["tokens"].copy()
    row = corpus.get_batch([0]).tobytes()
    unread = Corpus.open(url, cache=tmp_path / "unread")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        buffer = batches.buffer()
        batches.fill(buffer, epoch=0, index=0)
        found = [each.get_batch([0]).tobytes() for each in (corpus, unread)]
        theirs.send((buffer["tokens"].tobytes(), *found))

    process = context.Process(target=child)
    (session, *_) = corpus.sessions
    with session._lock:  # as another thread may have it at this moment
        process.start()
    assert ours.poll(60)
    assert ours.recv() == (first.tobytes(), row, row)
    process.join()
    assert process.exitcode == 0
    assert digest(batches) == digest(_second(Corpus.open(local).batches(64, seed=2)))


def _second(batches: Any) -> Any:
    """The same loader after its first batch."""
    next(iter(batches))
    return batches


def first_name(place: str) -> str:
    return list_sessions(open_store(place))[0]


LIES: dict[str, tuple[str, Callable[[bytes], bytes], type[TapeError]]] = {
    "a short tape": ("tape.npy", lambda data: data[:-1], TruncatedError),
    "a longer tape": ("tape.npy", lambda data: data + b"\0", ChecksumError),
    "another tape": ("tape.npy", lambda data: data[:-1] + bytes([data[-1] ^ 1]), ChecksumError),
    "another manifest": ("manifest.json", lambda data: data.replace(b"1", b"2"), ManifestError),
    "an empty manifest": ("manifest.json", lambda _: b"", ManifestError),
    "another run table": ("metadata.db", lambda data: data[:-1] + bytes([data[-1] ^ 1]), ChecksumError),
    "a short run table": ("metadata.db", lambda data: data[:100], TruncatedError),
}


@pytest.mark.parametrize("lie", LIES)
def test_replaced_bytes_in_the_store(local: Path, place: str, tmp_path: Path, lie: str) -> None:
    file, change, kind = LIES[lie]
    path = Path(place, "sessions", first_name(place), file)
    path.write_bytes(change(path.read_bytes()))
    cache = tmp_path / "cache"
    with pytest.raises(kind) as caught:
        Corpus.open(place, cache=cache).get_batch([0])
    assert str(path) in str(caught.value)
    assert not cached(cache)
    if file == "tape.npy":
        return
    found = Corpus.open(place, cache=cache, damaged="skip")
    assert [type(each.error) for each in found.skipped] == [kind]
    assert found.identity == Corpus.open([local / name for name in NAMES[1:]]).identity


def test_stale_listings_and_missing_files(place: str, tmp_path: Path) -> None:
    name = first_name(place)
    corpus = Corpus.open(place, cache=tmp_path / "cache")
    Path(place, "sessions", name, "tape.npy").unlink()
    with pytest.raises(CorpusError, match="no longer in the store"):
        corpus.get_batch([0])
    Path(place, "sessions", name, "manifest.json").write_bytes(b"")
    Path(place, "sessions", name, "manifest.json").unlink()
    with pytest.raises(CorpusError, match="no longer in the store"):
        corpus.get_batch([0])

    class Stale:
        """Lists what was there before."""

        def __getattr__(self, method: str) -> Any:
            return getattr(store, method)

        def names(self, directory: str) -> dict[str, int]:
            return store.names(directory) | ({f"{name}/manifest.json": 1} if directory == "sessions" else {})

    store = open_store(place)
    shutil.rmtree(tmp_path / "cache" / ".tables" / name)
    source = remote_session.open_remote(place, tmp_path / "cache", None)
    source.store = Stale()  # type: ignore[assignment]
    (_, error), *others = source.sessions()
    assert isinstance(error, MissingPathError)
    assert len(others) == len(NAMES) - 1


def test_a_store_that_is_away_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((StoreError, MissingPathError)):
        Corpus.open(str(tmp_path / "unmounted"), cache=tmp_path / "cache")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptyCorpusError, match="no session here"):
        Corpus.open(str(tmp_path / "empty"), cache=tmp_path / "cache")


def test_changed_copies_in_the_cache(place: str, tmp_path: Path) -> None:
    cache, name = tmp_path / "cache", first_name(place)
    corpus = Corpus.open(place, cache=cache)
    corpus.get_batch([0])
    with (cache / name / "tape.npy").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(TapeError) as caught:
        corpus.get_batch([0])
    assert str(cache / name) in str(caught.value)
    table = cache / ".tables" / name / "metadata.db"
    whole = table.read_bytes()
    for damaged in (b"XX" + whole[2:], whole[:-7], b""):  # as a power cut may leave it
        table.write_bytes(damaged)
        assert Corpus.open(place, cache=cache).identity == corpus.identity
        assert table.read_bytes() == whole


def test_a_session_counts_once(place: str, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "mirror")
    once = Corpus.open(place, cache=tmp_path / "cache")
    twice = Corpus.open([place, str(tmp_path / "mirror")], cache=tmp_path / "cache", duplicates="keep")
    assert twice.runs.tobytes() == once.runs.tobytes()


def test_readers_of_sessions_that_are_removed_go_on(local: Path, url: str, tmp_path: Path) -> None:
    place = f"{url}-removed"
    if not url.startswith("s3:"):
        Path(place).mkdir()
    store = open_store(place)
    put_all(store, local)
    mine = Corpus.open(local)
    corpus = Corpus.open(place, cache=tmp_path)
    batches = corpus.where(f"session LIKE '{NAMES[0]}%'").batches(16, seed=3)
    next(iter(batches))  # its session is here and held
    for name in list_sessions(store)[:2]:
        store.put(f"removed/{name}.json", b"{}")
    assert len(Corpus.open(place, cache=tmp_path).sessions) == len(NAMES) - 2
    second = int(corpus.row_starts[np.searchsorted(corpus.runs["session"], 1)])
    assert (corpus.get_batch([0, second]) == mine.get_batch([0, second])).all(), "the files are still there"
    shutil.rmtree(next(path for path in tmp_path.iterdir() if path.name.startswith(NAMES[1])))
    for name in {file.removesuffix(".json") for file in store.names("removed")}:
        store.retract(f"sessions/{name}", "manifest.json")
    assert digest(batches) == digest(_second(mine.where(f"session = '{NAMES[0]}'").batches(16, seed=3)))
    with pytest.raises(CorpusError) as caught:
        corpus.get_batch([second])
    assert NAMES[1] in str(caught.value)
    assert (corpus.get_batch([len(corpus) - 1]) == mine.get_batch([len(corpus) - 1])).all()


def test_opening_loads_no_client_and_no_compiler(place: str, tmp_path: Path) -> None:
    code = (
        "import sys; from tape2048 import Corpus\n"
        f"corpus = Corpus.open({place!r}, cache={str(tmp_path / 'cache')!r}); len(corpus.runs)\n"
        "print(*[name for name in ('obstore', 'boto3', 'numba', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_manifests_of_other_forms_are_named(place: str, tmp_path: Path) -> None:
    """A manifest that its own name represents, of files that no recorder writes."""
    from tape2048.stores.remote import _digest

    name = first_name(place)
    path = Path(place, "sessions", name)
    manifest = json.loads((path / "manifest.json").read_text())
    for change, kind in (
        (lambda files: files.pop("tape.npy"), TapeError),
        (lambda files: files["tape.npy"].update(bytes=5), ManifestError),
        (lambda files: files.pop("metadata.db"), ManifestError),
    ):
        altered = json.loads(json.dumps(manifest))
        change(altered["files"])
        text = json.dumps(altered).encode()
        other = path.with_name(f"{name[:-16]}{_digest(text)}")
        shutil.copytree(path, other)
        (other / "manifest.json").write_bytes(text)
        with pytest.raises(kind):
            Corpus.open(f"{place}/sessions/{other.name}", cache=tmp_path / "cache")
        shutil.rmtree(other)


def test_requests_for_many_sessions(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_store(tmp_path / "store", local / NAMES[0], 60)
    read: list[str] = []
    original = DirectoryStore.chunks

    def counting(self: DirectoryStore, key: str) -> Iterator[bytes]:
        read.append(key)
        yield from original(self, key)

    monkeypatch.setattr(DirectoryStore, "chunks", counting)
    for expected in (2, 0):
        read.clear()
        corpus = Corpus.open(str(tmp_path / "store"), cache=tmp_path / "cache", duplicates="keep")
        assert len(corpus.sessions) == 60
        assert len(corpus) == 60 * len(Session.open(local / NAMES[0]))
        assert len(read) == 60 * expected
    assert not cached(tmp_path / "cache")
