"""What every kind of store does with files."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.sdk.stores import KINDS, store_url

from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, StoreError
from tape2048.io import objects
from tape2048.io.objects import DirectoryStore, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_url(request.param, tmp_path_factory.mktemp("stores") / "place") as url:
        yield url


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


def test_what_is_put_is_read_and_replaced_whole(store: Store, tmp_path: Path) -> None:
    store.put("a/small", b"1")
    store.put("a/small", b"22")
    assert store.get("a/small", 2) == b"22"
    with pytest.raises(StoreError, match="more than 1 bytes"):
        store.get("a/small", 1)
    large = bytes(range(256)) * 80_000  # two and a half chunks, and parts of an upload
    (tmp_path / "large").write_bytes(large)
    store.upload("a/b/large", tmp_path / "large")
    assert b"".join(store.chunks("a/b/large")) == large
    (tmp_path / "large").write_bytes(b"")
    store.upload("a/b/large", tmp_path / "large")
    assert b"".join(store.chunks("a/b/large")) == b""


def test_a_listing_has_what_was_put_a_moment_before(store: Store) -> None:
    other = open_store(store.url)
    assert store.names("list") == {}
    for number in range(3):
        other.put(f"list/{number}/x", b"." * number)
        assert store.names("list") == {f"{each}/x": each for each in range(number + 1)}
    other.put("list/.hidden/x", b"") if isinstance(store, DirectoryStore) else None
    store.remove("list/1/x")
    store.remove("list/1/x")
    assert other.names("list") == {"0/x": 0, "2/x": 2}
    assert other.names("list/2") == {"x": 2}


def test_a_directory_appears_with_its_last_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"data")
    for round_ in range(2):  # the second one finds what a killed one left
        staged = store.stage("dirs/one")
        store.upload(f"{staged}/data", tmp_path / "data")
        assert "one/last" not in store.names("dirs")
        if round_ == 0:
            continue
        store.commit("dirs/one", "last", b"!")
        assert store.names("dirs") == {"one/data": 4, "one/last": 1}
        store.commit("dirs/one", "last", b"!")
    assert store.get("dirs/one/data", 10) == b"data"
    store.retract("dirs/one", "last")
    assert store.names("dirs") == {}
    store.retract("dirs/one", "last")


def test_two_concurrent_puts_of_one_directory(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"data")
    whole = {"data": 4, "more": 4, "last": 1}
    other = open_store(store.url)
    one_staged = store.stage("both/two")
    store.upload(f"{one_staged}/data", tmp_path / "data")
    other_staged = other.stage("both/two")
    store.upload(f"{one_staged}/more", tmp_path / "data")
    store.commit("both/two", "last", b"!")
    assert store.names("both/two") == whole
    for file in ("data", "more"):
        other.upload(f"{other_staged}/{file}", tmp_path / "data")
    other.commit("both/two", "last", b"!")
    assert store.names("both/two") == whole
    if isinstance(store, DirectoryStore):
        assert [path.name for path in (store.root / "both").iterdir()] == ["two"], "nothing is left"


def test_a_missing_key_names_its_address(store: Store, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError) as caught:
        store.get("nothing/here", 10)
    assert caught.value.path == f"{store.url}/nothing/here"
    assert store.names("nothing") == {}


def test_a_missing_root_is_not_created(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "unmounted"))
    (tmp_path / "file").touch()
    for use in (
        lambda: store.put("a/b", b""),
        lambda: store.upload("a/b", tmp_path / "file"),
        lambda: store.names("a"),
    ):
        with pytest.raises((StoreError, MissingPathError)):
            use()
    assert not (tmp_path / "unmounted").exists()


def test_an_unreachable_server_is_a_store_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    for name, value in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = open_store("s3://bucket/place")
    (tmp_path / "file").write_bytes(b"x")
    for use in (
        lambda: store.put("a", b""),
        lambda: store.upload("a", tmp_path / "file"),
        lambda: store.get("a", 1),
        lambda: store.names("a"),
    ):
        with pytest.raises(StoreError) as caught:
            use()
        assert not isinstance(caught.value, MissingPathError)
        assert "s3://bucket/place/a" in str(caught.value)


def test_unknown_schemes_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("gs://bucket/x", "s3://", "http://x/y"):
        with pytest.raises(ConfigError, match=r"expected a directory or s3://bucket/prefix"):
            open_store(wrong)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingPackageError) as caught:
        open_store("s3://bucket/x")
    assert caught.value.hint == "pip install 'tape2048[s3]'"


def test_a_directory_store_loads_no_client() -> None:
    code = (
        f"import sys; from {objects.__name__} import open_store; open_store('x')\n"
        "print(*[name for name in ('fsspec', 's3fs', 'boto3', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
