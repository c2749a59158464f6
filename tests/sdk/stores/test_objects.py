"""What every kind of store does with files."""

import contextlib
import multiprocessing
import os
import re
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
from tests.bench import flaky_store
from tests.bench.flaky_store import FlakyProxy
from tests.sdk.store_servers import CLOUDS, KINDS, hub_server, s3_environment, store_url

from tape2048 import Corpus
from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, StoreError
from tape2048.stores import objects
from tape2048.stores.objects import DirectoryStore, Store, open_store


@pytest.fixture(scope="module", params=[*KINDS, *CLOUDS])
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


@pytest.mark.parametrize("scheme", ["s3", *CLOUDS])
def test_an_unreachable_server_is_a_store_error(scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "file").write_bytes(b"x")
    with s3_environment("http://127.0.0.1:1", scheme):
        store = open_store(f"{scheme}://bucket/place")
        for use in (
            lambda: store.put("a", b""), lambda: store.upload("a", tmp_path / "file"),
            lambda: store.get("a", 1), lambda: store.names("a"),
        ):  # fmt: skip
            with pytest.raises(StoreError) as caught:
                use()
            assert not isinstance(caught.value, MissingPathError)
            assert f"{scheme}://bucket/place/a" in str(caught.value)
            assert "ENDPOINT" in caught.value.advice or "BASE_URL" in caught.value.advice
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
    scheme = url.partition("://")[0]
    if scheme == url:
        pytest.skip("a directory has no bucket")
    store = open_store(f"{scheme}://missing/place")
    uses: list[Callable[[], object]] = [
        lambda: store.put("a", b""), lambda: store.get("a", 1), lambda: store.names("a")
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(MissingPathError, match="://missing/place/a") as caught:
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
        asked = self.headers.get("Range", "bytes=0-").partition("=")[2]
        start, _, last = asked.partition("-")
        span = range(len(DATA))[int(start) : int(last) + 1 if last else None]
        body, is_part = b"" if fault == "busy" else DATA[span.start : span.stop], asked != "0-"
        self.send_response(503 if fault == "busy" else 206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {span.start}-{span.stop - 1}/{len(DATA)}")
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
def faulty_server(kind: type[_Faulty] = _Faulty) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


#: Variables of the services' addresses.
ADDRESSES = {"gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT", "s3": "AWS_ENDPOINT_URL"}
PLACES = {scheme: f"{scheme}://bucket/place" for scheme in ("s3", *CLOUDS)} | {
    "hf": "hf://datasets/USER/NAME"
}


@pytest.mark.parametrize("scheme", PLACES)
@pytest.mark.parametrize("fault", ["busy", "cut"])
def test_two_faults_are_retried_and_more_are_an_error(
    scheme: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub" if scheme == "hf" else "obstore")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    with faulty_server() as address, s3_environment(address, scheme):
        store = open_store(PLACES[scheme])
        _Faulty.faults[:] = [fault] * 2
        assert b"".join(store.chunks("a")) == DATA
        _Faulty.faults[:] = [fault] * 9
        with pytest.raises(StoreError, match=f"{PLACES[scheme]}/a: reading failed .*"):
            list(store.chunks("a"))


@pytest.mark.parametrize("scheme", PLACES)
def test_a_silent_server_is_given_up(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub" if scheme == "hf" else "obstore")
    monkeypatch.setattr(objects, "_ANSWER_S", 1)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        late = r"reading failed \((no answer within 1 s: |ReadTimeout: )"
        with s3_environment(address, scheme), pytest.raises(StoreError, match=late):
            open_store(PLACES[scheme]).get("a", 1)


@pytest.mark.parametrize("kind", [*CLOUDS, "moto", "hf"])
def test_a_flaky_network_gives_the_file_or_one_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are refused, late, or cut in the middle."""
    fates = {"passed": 0.3, "refused": 0.5, "late": 0.2}
    for name, value in (("BYTES_MEAN", 6e6), ("LATE_S", (0.0, 0.1)), ("FATES", fates)):
        monkeypatch.setattr(flaky_store, name, value)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    (tmp_path / "hub/a").mkdir(parents=True)
    (tmp_path / "hub/a/file").write_bytes(DATA)
    scheme = "s3" if kind == "moto" else kind
    with contextlib.ExitStack() as stack:
        if kind == "hf":
            address, url = stack.enter_context(hub_server(tmp_path / "hub")), PLACES["hf"]
        else:
            url = stack.enter_context(store_url(kind, tmp_path / "place"))
            open_store(url).upload("a/file", tmp_path / "hub/a/file")
            address = os.environ[ADDRESSES[scheme]]
        proxy = stack.enter_context(FlakyProxy(address, seed=3))
        stack.enter_context(s3_environment(f"http://127.0.0.1:{proxy.port}", scheme))
        store, good, errors = open_store(url), 0, []
        for _ in range(300):  # until both were seen; the times of the outages are not drawn from the seed
            try:
                assert b"".join(store.chunks("a/file")) == DATA
                assert store.names("a") == {"file": len(DATA)}
                good += 1
            except StoreError as error:
                errors.append(str(error))
            if good and errors:
                break
        assert good, errors
        assert all(re.search(f"^{url}/a(/file)?: (reading|listing) failed ", text) for text in errors)
        assert errors
        proxy.calm = True
        assert store.get("a/file", len(DATA)) == DATA


@pytest.mark.parametrize(
    ("scheme", "status", "body"),
    [
        *[(scheme, *pair) for scheme in PLACES for pair in ((403, b"no"), (400, b""), (200, b"3"))],
        ("hf", 200, b"<html>log in</html>"),
        ("hf", 200, b"[{}]"),
    ],
)
def test_a_wrong_answer_is_one_error(scheme: str, status: int, body: bytes) -> None:
    pytest.importorskip("huggingface_hub" if scheme == "hf" else "obstore")

    class Wrong(_Faulty):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with faulty_server(Wrong) as address, s3_environment(address, scheme):
        store = open_store(PLACES[scheme])
        with pytest.raises(StoreError, match=f"{PLACES[scheme]}/sessions: listing failed .*") as caught:
            store.names("sessions")
        assert "<" not in str(caught.value)
        if status != 200:
            assert str(status) in str(caught.value)
            with pytest.raises(StoreError, match=f"reading failed .*{status}"):
                store.get("a", 1)


@pytest.mark.parametrize("scheme", ["s3", *CLOUDS])
def test_addresses_that_are_none(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with s3_environment("localhost:9000", scheme):
        said = r"(AWS_ENDPOINT_URL|GOOGLE_BASE_URL|AZURE_STORAGE_ENDPOINT) is 'localhost:9000.*'; expected http://"
        with pytest.raises(ConfigError, match=said):
            open_store(PLACES[scheme])
    with s3_environment("http://a b", scheme), pytest.raises(StoreError, match="writing failed"):
        open_store(PLACES[scheme]).put("a", b"")


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="writing failed") as caught:
        open_store("az://bucket/place").put("a", b"")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.advice


def test_unknown_schemes_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("gcs://bucket/x", "s3://", "gs://", "az:///", "http://x/y"):
        with pytest.raises(ConfigError, match=r"expected a directory, s3://bucket/prefix, gs://"):
            open_store(wrong)
    for wrong in ("hf://", "hf://datasets/NAME", "hf://datasets", "hf://datasets/USER/NAME@"):
        with pytest.raises(
            ConfigError, match=f"found the address '{wrong}', expected hf://datasets/OWNER/NAME"
        ):
            open_store(wrong)
    monkeypatch.setattr(objects, "_LIBRARIES", {})
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for scheme, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure"), ("hf", "hf")):
        with pytest.raises(MissingPackageError) as caught:
            open_store(PLACES[scheme])
        assert caught.value.hint == f"pip install 'tape2048[{extra}]'"


@pytest.mark.parametrize("address", ["s3://", "gs:///", "az://", "s3:/bucket", "hf://"])
def test_an_empty_address_is_no_directory(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"found the address '{address}', expected "):
        Corpus.open(address, cache=tmp_path)


@pytest.mark.parametrize("place", ["", "/", "/sessions", "/20260101T000000Z_model=x"])
def test_an_error_names_the_address_as_given(place: str, tmp_path: Path) -> None:
    """Users and passwords of addresses are masked, those of servers too."""
    with faulty_server() as address, s3_environment(address.replace("//", "//ada:secret@")):
        _Faulty.faults[:] = ["busy"] * 9
        given = f"s3://bucket/place{place}"
        with pytest.raises(StoreError, match=re.escape(f"{given}: listing failed")) as caught:
            Corpus.open(given, cache=tmp_path)
        assert "secret" not in str(caught.value)
    missing = f"file://{tmp_path}/missing"
    with pytest.raises(MissingPathError, match=re.escape(f"{missing}: no such")):
        Corpus.open(missing, cache=tmp_path)
    error = StoreError("http://ada:secret@host/x", path="s3://ada:secret@b", hint="try a://ada:secret@b")
    assert (error.message, error.path, error.hint) == ("http://***@host/x", "s3://***@b", "try a://***@b")


# ------------------------------------------------------------------------------------- a hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Store]:
    pytest.importorskip("huggingface_hub")
    for name, data in {
        "a/b c/large": DATA,
        "a/small": b"12",
        "a/.hidden/x": b"",
        "top": b"",
        "a/é": b"1",
    }.items():
        (tmp_path / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / name).write_bytes(data)
    with hub_server(tmp_path / "hub") as address, s3_environment(address, "hf"):
        yield open_store("hf://datasets/USER/NAME")


def test_a_hub_is_read(hub: Store) -> None:
    """Listings of several pages, files in several parts and behind a redirection, revisions and paths."""
    files = {"b c/large": len(DATA), "small": 2, "é": 1}
    assert hub.names("a") == files
    assert hub.names("") == {f"a/{name}": size for name, size in files.items()} | {"top": 0}
    assert hub.names("nothing") == {}
    assert b"".join(hub.chunks("a/b c/large")) == DATA
    assert (hub.get("a/small", 2), hub.get("top", 0), hub.get("a/é", 1)) == (b"12", b"", b"1")
    below = open_store("hf://datasets/USER/NAME@v1/a/")
    assert below.names("") == files
    assert below.get("small", 2) == b"12"
    assert below.path("small") == "hf://datasets/USER/NAME@v1/a/small"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("hf://datasets/USER/NAME", "no such file in the repository"),
        ("hf://datasets/USER/NAME@v2", "no such repository or revision"),
        ("hf://datasets/USER/OTHER", "no such repository or revision"),
        ("hf://USER/NAME", "no such repository or revision"),
    ],
)
def test_what_a_hub_lacks_is_one_error(hub: Store, place: str, said: str) -> None:
    with pytest.raises(MissingPathError, match=f"{place}/nothing/here: {said}"):
        open_store(place).get("nothing/here", 1)
    if "repository or" in said:
        with pytest.raises(MissingPathError, match=f"{place}/sessions: {said}") as caught:
            open_store(place).names("sessions")
        assert "HF_TOKEN" in caught.value.advice


def test_a_hub_is_not_written(hub: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for use in (
        lambda: hub.put("a", b""), lambda: hub.upload("a", tmp_path / "file"), lambda: hub.remove("a/small")
    ):  # fmt: skip
        with pytest.raises(StoreError, match="read-only for this command") as caught:
            use()
        assert "tape2048 publish" in caught.value.advice


def test_forked_children_read_a_hub(hub: Store) -> None:
    assert hub.get("a/small", 2) == b"12"
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(0 if hub.get("a/small", 2) == b"12" and hub.names("a") else 3)
    )
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0


def test_a_directory_store_loads_no_client() -> None:
    code = (
        f"import sys; from {objects.__name__} import open_store; open_store('x')\n"
        "print(*[name for name in ('obstore', 'boto3', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
