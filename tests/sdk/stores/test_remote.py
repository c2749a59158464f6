"""Sessions in stores: whole or not at all, whoever is killed and whatever the store says."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.builders import write_ours
from tests.sdk.store_servers import KINDS, fetch_session, store_url

from tape2048 import Corpus
from tape2048.errors import (
    ChecksumError,
    FormatError,
    ManifestError,
    MissingPathError,
    StoreError,
    TapeError,
    TruncatedError,
)
from tape2048.stores import remote
from tape2048.stores.objects import DirectoryStore, Store, open_store
from tape2048.stores.remote import (
    RemoteName,
    list_sessions,
    put_session,
    read_manifest,
)

#: The operations of a store that shipping uses.
CALLS = ("upload", "chunks", "names", "stage", "commit", "retract", "get")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ours(tmp_path_factory.mktemp("spool") / "20260101T000000Z_model=toy")


@pytest.fixture(scope="module", params=KINDS)
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_url(request.param, tmp_path_factory.mktemp("stores") / "place") as url:
        yield url


@pytest.fixture
def store(places: str, request: pytest.FixtureRequest) -> Store:
    """A place of its own for each test."""
    url = f"{places}/{abs(hash(request.node.name))}"
    if not url.startswith("s3:"):
        Path(url).mkdir()
    return open_store(url)


class Killed(BaseException):
    """The process ends here."""


class Faulty:
    """A store whose n-th operation fails: before it is done, after it, or in the middle of what it reads."""

    def __init__(self, store: Store, at: int, error: BaseException, when: str) -> None:
        self._store, self._error, self._when = store, error, when
        self.left = at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._watched(found) if name in CALLS else found

    def get(self, key: str, bytes_max: int) -> bytes:
        return Store.get(self, key, bytes_max)  # type: ignore[arg-type]

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            self.calls += 1
            fails = self.calls == self.left
            if fails and self._when == "before":
                raise self._error
            done = call(*args)
            if fails:
                raise self._error
            return done

        return watched


def assert_whole(store: Store, names: list[str], session: Path, tmp_path: Path) -> None:
    for name in names:
        got = fetch_session(store, name, tmp_path / "fetched")
        for file in {*session.iterdir()} - {session / "manifest.json"}:
            assert (got / file.name).read_bytes() == file.read_bytes()
    shutil.rmtree(tmp_path / "fetched", ignore_errors=True)


def test_a_session_goes_there_and_back(store: Store, session: Path, tmp_path: Path) -> None:
    assert list_sessions(store) == []
    name = put_session(store, session, "00000a")
    assert RemoteName.parse(name) == (session.name, "00000a", name[-16:])
    assert list_sessions(open_store(store.url)) == [name]
    assert read_manifest(store, name)[0].rows == len(Corpus.open(session))
    assert put_session(store, session, "00000a") == name, "again: nothing changes"
    assert list_sessions(store) == [name]
    got = fetch_session(store, name, tmp_path / "fetched")
    assert fetch_session(store, name, tmp_path / "fetched") == got
    assert len(Corpus.open(tmp_path / "fetched")) == len(Corpus.open(session))
    if isinstance(store, DirectoryStore):
        assert len(Corpus.open(store.root / "sessions")) == len(Corpus.open(session)), "without a copy"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [Killed(), StoreError("away")], ids=["killed", "error"])
def test_a_put_that_stops_at_any_operation(
    store: Store, session: Path, tmp_path: Path, error: BaseException, when: str
) -> None:
    seen = []
    for at in range(1, 100):
        place = open_store(f"{store.url}/{at}")
        if isinstance(place, DirectoryStore):
            place.root.mkdir()
        faulty: Any = Faulty(place, at, error, when)
        try:
            name = put_session(faulty, session, "000001")
        except type(error):
            found = list_sessions(place)
            seen.append(len(found))
            assert_whole(place, found, session, tmp_path)
            name = put_session(place, session, "000001")  # the next agent
        else:
            assert faulty.calls < at
            assert list_sessions(place) == [name]
            break
        assert list_sessions(place) == [name]
        assert_whole(place, [name], session, tmp_path)
    assert sorted(seen) == seen, "nothing that was whole is taken away"
    assert {0, 1} == set(seen)


def damage(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    store.put(key, change(store.get(key, 1 << 30)))


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda data: data[:-1], "long": lambda data: data + b"\0",
    "replaced": lambda data: data[:-1] + bytes([data[-1] ^ 1]), "empty": lambda _: b"",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("file", ["steps.npy", "metadata.db", "manifest.json"])
def test_changed_bytes_in_the_store_are_put_again(
    store: Store, session: Path, tmp_path: Path, file: str, change: str
) -> None:
    name = put_session(store, session, "000001")
    key = f"sessions/{name}/{file}"
    damage(store, key, CHANGES[change])
    with pytest.raises(FormatError) as caught:
        fetch_session(store, name, tmp_path / "fetched")
    assert str(caught.value.path) == store.path(key)
    expected = {"short": TruncatedError, "empty": TruncatedError}.get(change, ChecksumError)
    assert type(caught.value) is (ManifestError if file == "manifest.json" else expected)
    assert not list(tmp_path.glob("fetched/*")), "nothing half is left"
    assert put_session(store, session, "000001") == name
    assert_whole(store, [name], session, tmp_path)


def test_a_forged_crc32c_is_no_proof(store: Store, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = put_session(store, session, "000001")
    key = f"sessions/{name}/steps.npy"
    entry = read_manifest(store, name)[0].files["steps.npy"]
    damage(store, key, CHANGES["replaced"])
    monkeypatch.setattr(remote, "crc32c", lambda *_: entry.crc32c)
    with pytest.raises(ChecksumError, match="SHA-256"):
        remote.compare_file(store, key, entry)


def test_stores_of_earlier_releases_are_read(store: Store, session: Path, tmp_path: Path) -> None:
    """Their manifests have no SHA-256; what they hold is not put again."""
    digest = hashlib.sha256((session / "manifest.json").read_bytes()).hexdigest()
    name = f"{session.name}.000001.{digest[:16]}"
    for file in session.iterdir():
        store.upload(f"sessions/{name}/{file.name}", file)
    assert_whole(store, [name], session, tmp_path)
    assert put_session(store, session, "000001") == name
    assert list_sessions(store) == [name]


@pytest.mark.parametrize("file", ["steps.npy", "metadata.db"])
def test_a_file_that_is_gone_from_the_store_is_named(
    store: Store, session: Path, tmp_path: Path, file: str
) -> None:
    name = put_session(store, session, "000001")
    store.remove(f"sessions/{name}/{file}")
    with pytest.raises(MissingPathError) as caught:
        fetch_session(store, name, tmp_path / "fetched")
    assert file in str(caught.value)
    put_session(store, session, "000001")
    assert_whole(store, [name], session, tmp_path)


class Liar:
    """A store that does one thing wrong."""

    def __init__(self, store: Store, **instead: Callable[..., Any]) -> None:
        self._store, self._instead = store, instead

    def __getattr__(self, name: str) -> Any:
        return self._instead.get(name, getattr(self._store, name))


def test_a_store_that_returns_other_bytes(store: Store, session: Path) -> None:
    def cut(key: str, path: Path) -> None:
        store.put(key, path.read_bytes()[:-7])

    def swapped(key: str, path: Path) -> None:
        store.put(key, path.read_bytes()[::-1])

    for lie, kind in (
        ({"upload": cut}, TruncatedError),
        ({"upload": swapped}, ChecksumError),
        ({"names": lambda _: {}}, StoreError),
        ({"get": lambda *_: b"{}"}, ManifestError),
    ):
        liar: Any = Liar(store, **lie)
        with pytest.raises(kind) as caught:
            put_session(liar, session, "000001")
        assert isinstance(caught.value, TapeError)
        assert str(caught.value.path).startswith(store.url)


def test_a_session_that_is_damaged_here_is_not_shipped(store: Store, session: Path, tmp_path: Path) -> None:
    for change, kind in (("short", TruncatedError), ("replaced", ChecksumError)):
        copy = tmp_path / change / session.name
        shutil.copytree(session, copy)
        (copy / "steps.npy").write_bytes(CHANGES[change]((copy / "steps.npy").read_bytes()))
        with pytest.raises(kind) as caught:
            put_session(store, copy, "000001")
        assert caught.value.path == str(copy / "steps.npy")
        assert list_sessions(store) == []
    (copy / "manifest.json").unlink()
    with pytest.raises(ManifestError, match="no such file"):
        put_session(store, copy, "000001")


def test_names_of_others_are_no_sessions(store: Store, session: Path) -> None:
    for other in ("notes/manifest.json", "20260101T000000Z_model=x/manifest.json", "a.b.c/manifest.json"):
        store.put(f"sessions/{other}", b"{}")
    store.put("sessions/20260101T000000Z_model=x.000001.0123456789abcdef/steps.npy", b"no manifest yet")
    assert list_sessions(store) == []
