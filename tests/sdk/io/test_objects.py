"""What every kind of store does with files."""

import contextlib
import multiprocessing
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import pytest
from tests.sdk.stores import KINDS, s3_environment, store_url

from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, StoreError
from tape2048.io import objects
from tape2048.io.objects import DirectoryStore, Store, open_store


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
    if isinstance(store, DirectoryStore):  # what killed ones left, also of an earlier release
        for left in (f".one.{'a' * 16}.tmp", ".one.0123abcd.partial"):
            (store.root / "dirs" / left).mkdir(parents=True)
    for stops in (True, False, False):
        with contextlib.suppress(ZeroDivisionError), store.publishing("dirs/one", "last", b"!") as draft:
            store.upload(f"{draft}/data", tmp_path / "data")
            if stops:
                assert "one/last" not in store.names("dirs")
                raise ZeroDivisionError
        assert ("one/last" in store.names("dirs")) is not stops
    assert store.names("dirs") == {"one/data": 4, "one/last": 1}
    assert store.get("dirs/one/data", 10) == b"data"
    if isinstance(store, DirectoryStore):
        assert [path.name for path in (store.root / "dirs").iterdir()] == ["one"], "nothing is left"
    store.retract("dirs/one", "last")
    assert store.names("dirs") == {}
    store.retract("dirs/one", "last")


def test_two_concurrent_puts_of_one_directory(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"data")
    whole = {"data": 4, "more": 4, "last": 1}
    with open_store(store.url).publishing("both/two", "last", b"!") as theirs:
        with store.publishing("both/two", "last", b"!") as mine:
            for file in ("data", "more"):
                store.upload(f"{mine}/{file}", tmp_path / "data")
        assert store.names("both/two") == whole
        for file in ("data", "more"):
            store.upload(f"{theirs}/{file}", tmp_path / "data")
    assert store.names("both/two") == whole
    if isinstance(store, DirectoryStore):
        assert [path.name for path in (store.root / "both").iterdir()] == ["two"], "nothing is left"


def test_a_missing_key_names_its_address(store: Store, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError) as caught:
        store.get("nothing/here", 10)
    assert caught.value.path == f"{store.url}/nothing/here"
    assert store.names("nothing") == {}
    if not isinstance(store, DirectoryStore):
        assert "make the bucket" in caught.value.advice


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
    pytest.importorskip("obstore")
    for name, value in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = open_store("s3://bucket/place")
    (tmp_path / "file").write_bytes(b"x")
    for use in (
        lambda: store.put("a", b""), lambda: store.upload("a", tmp_path / "file"), lambda: store.get("a", 1),
        lambda: store.names("a"),
    ):  # fmt: skip
        with pytest.raises(StoreError) as caught:
            use()
        assert not isinstance(caught.value, MissingPathError)
        assert "s3://bucket/place/a" in str(caught.value)
    with pytest.raises(StoreError, match="Connection refused"):
        store.put("a", b"")


def test_forked_children_use_their_own_client(store: Store) -> None:
    """The parent's runtime would hang in them, also behind a new store."""
    store.put("fork/0", b"0")

    def child(pipe: Connection, depth: int) -> None:
        for each in (store, open_store(store.url)):
            with ThreadPoolExecutor(8) as threads:
                assert set(threads.map(each.get, ["fork/0"] * 8, [1] * 8)) == {b"0"}
            each.put(f"fork/{depth}", b"." * depth)
        if depth < 2:
            fork(pipe, depth + 1)
        else:
            pipe.send(store.names("fork"))

    def fork(pipe: Connection, depth: int) -> None:
        process = multiprocessing.get_context("fork").Process(target=child, args=(pipe, depth))
        process.start()
        process.join(60 * (3 - depth))  # longer than the child waits for its own
        process.kill()
        assert process.exitcode == 0

    ours, theirs = multiprocessing.Pipe()
    fork(theirs, 1)
    assert ours.recv() == {"0": 1, "1": 1, "2": 2}
    assert store.get("fork/2", 2) == b".."


def test_a_missing_bucket_is_named(url: str) -> None:
    if not url.startswith("s3:"):
        pytest.skip("a directory has no bucket")
    store = open_store("s3://missing/place")
    uses: list[Callable[[], object]] = [
        lambda: store.put("a", b""), lambda: store.get("a", 1), lambda: store.names("a")
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(MissingPathError, match="s3://missing/place/a") as caught:
            use()
        assert "make the bucket" in caught.value.advice


def test_credentials_of_a_profile_and_wrong_ones(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    where = tmp_path_factory.mktemp("stores") / "keys"
    with store_url("rclone", where) as url, monkeypatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        for key in ("key", "another"):
            text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n"
            (tmp_path / "credentials").write_text(text)
            store = open_store(url)
            if key == "key":
                store.put("a", b"1")
                assert store.get("a", 1) == b"1"
            else:
                with pytest.raises(StoreError, match="InvalidAccessKeyId") as caught:
                    store.put("a", b"2")
                assert "<" not in str(caught.value)
                assert "credentials" in caught.value.advice


DATA = bytes(range(256)) * 40_000


class _Faulty(BaseHTTPRequestHandler):
    """Serves DATA, after a number of faults."""

    protocol_version = "HTTP/1.1"
    faults: ClassVar[list[str]] = []

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.pop() if self.faults else ""
        start = int(self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0])
        body = b"" if fault == "busy" else DATA[start:]
        self.send_response(503 if fault == "busy" else 206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        self.wfile.flush()
        if fault == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    do_GET = answer  # noqa: N815 - the base class's name

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def faulty_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Faulty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("fault", ["busy", "cut"])
def test_two_faults_are_retried_and_more_are_an_error(fault: str) -> None:
    pytest.importorskip("obstore")
    with faulty_server() as address, s3_environment(address):
        store = open_store("s3://bucket/place")
        _Faulty.faults[:] = [fault] * 2
        assert b"".join(store.chunks("a")) == DATA
        _Faulty.faults[:] = [fault] * 9
        with pytest.raises(StoreError, match="s3://bucket/place/a: reading failed"):
            list(store.chunks("a"))


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(objects, "_ANSWER_S", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        late = r"writing failed \(no answer within 1 s: "
        with s3_environment(address), pytest.raises(StoreError, match=late):
            open_store("s3://bucket/place").put("a", b"1")


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL is 'localhost:9000'; expected http://"):
        open_store("s3://bucket/x")
    with s3_environment("http://a b"), pytest.raises(StoreError, match="writing failed"):
        open_store("s3://bucket/x").put("a", b"")


def test_unknown_schemes_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("gs://bucket/x", "s3://", "http://x/y"):
        with pytest.raises(ConfigError, match=r"expected a directory or s3://bucket/prefix"):
            open_store(wrong)
    monkeypatch.setattr(objects, "_LIBRARIES", {})
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError) as caught:
        open_store("s3://bucket/x")
    assert caught.value.hint == "pip install 'tape2048[s3]'"


def test_a_directory_store_loads_no_client() -> None:
    code = (
        f"import sys; from {objects.__name__} import open_store; open_store('x')\n"
        "print(*[name for name in ('obstore', 'boto3', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
