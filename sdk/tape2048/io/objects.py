"""Files below a URL: a directory (of a network file system, too), or a bucket of S3 (extra ``s3``).

Keys are relative paths, such as ``sessions/NAME/tape.npy``. A put is atomic and replaces; no operation is
conditional, since stores differ in what they make of a condition. Who needs a unique key derives it from its
content, or from something that nobody else has. Listings are fresh: nothing is cached.

A directory of files becomes visible as a whole: its files are uploaded below :meth:`Store.stage`, and
:meth:`Store.commit` puts its last one. On S3 readers look for that last key; in a directory, the staged one
has a hidden name until it is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, StoreError, TapeError
from tape2048.io.durable import (
    fsync_dir,
    new_file,
    open_fd,
    rename_noreplace,
    replace_file,
    storage_errors,
    write_all,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

#: Bytes of one read or write.
CHUNK_BYTES = 8 * 1024 * 1024

#: The longest that an operation of S3, and an upload of a whole file, may take.
_ANSWER_S, _UPLOAD_S = 60.0, 3600.0

_AWAY_HINT = "look at the address, the network and the credentials; it is tried again"


class Store(ABC):
    """Files below a URL. Every method raises StoreError if the store rejects it or does not answer."""

    url: str

    def put(self, key: str, data: bytes) -> None:
        """Write a small file, or replace it."""
        with self._reached(key, "writing") as path:
            self._put(path, data)

    def upload(self, key: str, path: Path) -> None:
        """Write a file with the content of a local one, or replace it."""
        with storage_errors(path, "reading it"), open_fd(path, os.O_RDONLY):
            pass  # a local file that is missing is another error
        with self._reached(key, "writing") as target:
            self._upload(target, path)

    def chunks(self, key: str, size: int | None = None) -> Iterator[bytes]:
        """Read a file from start to end; MissingPathError if there is none.

        With the expected ``size``, S3 needs one request less; of a longer file a byte more may come.
        """
        with self._reached(key, "reading") as path:
            yield from self._chunks(path, size)

    def names(self, directory: str) -> dict[str, int]:
        """List the files below a directory, relative to it, with their sizes; hidden files are left out."""
        with self._reached(directory, "listing") as path:
            return self._names(path)

    def remove(self, key: str) -> None:
        """Remove a file, if it exists."""
        with self._reached(key, "removing") as path, contextlib.suppress(FileNotFoundError):
            self._remove(path)

    @abstractmethod
    def stage(self, directory: str) -> str:
        """Return the place for the files of a directory that is not visible yet; leftovers are removed."""

    @abstractmethod
    def commit(self, directory: str, name: str, data: bytes) -> None:
        """Put the last file of a staged directory, which makes it visible; a visible one stays."""

    @abstractmethod
    def retract(self, directory: str, name: str) -> None:
        """Remove a directory, its last file first."""

    def get(self, key: str, bytes_max: int, size: int | None = None) -> bytes:
        """Read a small file, of at most ``bytes_max`` bytes; ``size`` as for :meth:`chunks`."""
        data = b""
        for chunk in self.chunks(key, size):
            data += chunk
            if len(data) > bytes_max:
                raise StoreError(f"more than {bytes_max} bytes, expected a small file", path=self.path(key))
        return data

    def path(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return f"{self.url}/{key}"

    # The methods above, on the path or the address that _reached() yields.
    @abstractmethod
    def _reached(self, key: str, doing: str) -> AbstractContextManager[Any]: ...
    @abstractmethod
    def _put(self, path: Any, data: bytes) -> None: ...
    @abstractmethod
    def _upload(self, target: Any, path: Path) -> None: ...
    @abstractmethod
    def _chunks(self, path: Any, size: int | None) -> Iterator[bytes]: ...
    @abstractmethod
    def _names(self, path: Any) -> dict[str, int]: ...
    @abstractmethod
    def _remove(self, path: Any) -> None: ...


def is_url(path: object) -> bool:
    """Check whether a path is the address of a store: text with a scheme."""
    return isinstance(path, str) and "://" in path


def open_store(url: str) -> Store:
    """Open a store."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme == "file":
        return DirectoryStore(Path(os.path.abspath(rest if colon else url)))
    if scheme == "s3" and rest.strip("/"):
        return S3Store(rest.strip("/"))
    raise ConfigError(
        f"found the address {url!r}, expected a directory or s3://bucket/prefix",
        hint="mount other stores as a directory, or reach them by their S3 gateway (AWS_ENDPOINT_URL)",
    )


class DirectoryStore(Store):
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        #: Two agents may put one directory at a time (of a copied spool): neither has the other's files.
        self._token = secrets.token_hex(4)

    @contextlib.contextmanager
    def _reached(self, key: str, doing: str) -> Iterator[Path]:
        path = self.root / key
        try:
            yield path
        except FileNotFoundError as error:
            raise MissingPathError("nothing stands at this path", path=path) from error
        except OSError as error:
            raise StoreError(f"{doing} failed ({error.strerror or error})", path=path) from error

    def _make_directory(self, path: Path) -> None:
        """Make a directory below the root, durably; a root that is gone (an unmounted one) is an error."""
        if path != self.root and not path.is_dir():
            self._make_directory(path.parent)
            path.mkdir(exist_ok=True)
            fsync_dir(path.parent)

    def _put(self, path: Path, data: bytes) -> None:
        self._make_directory(path.parent)
        replace_file(path, data)

    def _upload(self, target: Path, path: Path) -> None:
        self._make_directory(target.parent)
        with open_fd(path, os.O_RDONLY) as source, new_file(target, replace=True) as fd:
            while data := os.read(source, CHUNK_BYTES):
                write_all(fd, data)

    def _chunks(self, path: Path, size: int | None) -> Iterator[bytes]:  # noqa: ARG002 - for S3
        with open_fd(path, os.O_RDONLY) as fd:
            while data := os.read(fd, CHUNK_BYTES):
                yield data

    def _names(self, path: Path) -> dict[str, int]:
        found = {}
        self.root.stat()
        for parent, folders, files in os.walk(path, onerror=_raise_unless_gone):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                file = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if not name.startswith("."):
                        found[file.relative_to(path).as_posix()] = file.stat().st_size
        return found

    def _remove(self, path: Path) -> None:
        path.unlink()
        fsync_dir(path.parent)

    def stage(self, directory: str) -> str:
        """Return where to put the files of a directory that is not visible yet; what was left goes."""
        staged = self._staged(directory)
        with self._reached(staged, "removing what was left there") as left:
            shutil.rmtree(left, ignore_errors=not left.exists())
        return staged

    def commit(self, directory: str, name: str, data: bytes) -> None:
        """Put the last file of a staged directory, which makes it visible; a visible one stays."""
        staged = self.root / self._staged(directory)
        with self._reached(directory, "publishing") as target:
            if target.exists():
                shutil.rmtree(staged, ignore_errors=True)
                return
            write_file(staged / name, data)
            fsync_dir(staged)
            rename_noreplace(staged, target)
            fsync_dir(target.parent)
            for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
                shutil.rmtree(left, ignore_errors=True)  # of killed processes; a living one finds the target

    def _staged(self, directory: str) -> str:
        path = Path(directory)
        return path.with_name(f".{path.name}.{self._token}.partial").as_posix()

    def retract(self, directory: str, name: str) -> None:  # noqa: ARG002 - the rename hides all files at once
        """Remove a directory, its last file first."""
        with self._reached(directory, "removing") as path, contextlib.suppress(FileNotFoundError):
            hidden = path.with_name(f".{path.name}.removed")
            shutil.rmtree(hidden, ignore_errors=True)
            path.rename(hidden)
            fsync_dir(path.parent)
            shutil.rmtree(hidden)


class S3Store(Store):
    """Objects below a prefix of a bucket, by s3fs, which takes credentials and address as boto3 does."""

    def __init__(self, root: str) -> None:
        self.url = f"s3://{root}"
        self._root = root
        try:
            import s3fs
        except ImportError as error:
            raise MissingPackageError(
                "s3:// needs the package s3fs", path=self.url, hint="pip install 'tape2048[s3]'"
            ) from error
        limits = {
            "connect_timeout": 5,
            "read_timeout": 30,
            "retries": {"max_attempts": 2},
            # Some servers send a file's checksum with a part of it; what is read here is compared anyway.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        # Its listing cache would hide new sessions.
        self._files: Any = s3fs.S3FileSystem(
            use_listings_cache=False, skip_instance_cache=True, config_kwargs=limits
        )
        self._files.retries = 2

    def _do(self, name: str, *args: Any, timeout_s: float = _ANSWER_S, **options: Any) -> Any:
        """Call a method of s3fs; a server may neither answer nor hang up."""
        from fsspec.asyn import sync

        return sync(self._files.loop, getattr(self._files, f"_{name}"), *args, timeout=timeout_s, **options)

    @contextlib.contextmanager
    def _reached(self, key: str, doing: str) -> Iterator[str]:
        try:
            yield f"{self._root}/{key}"
        except TapeError:
            raise
        except FileNotFoundError as error:
            raise MissingPathError("nothing stands at this address", path=self.path(key)) from error
        except Exception as error:  # those of boto, aiohttp and asyncio have no base class in common
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise StoreError(f"{doing} failed ({why})", path=self.path(key), hint=_AWAY_HINT) from error

    def _put(self, path: str, data: bytes) -> None:
        self._do("pipe_file", path, data)

    def _upload(self, target: str, path: Path) -> None:
        self._do("put_file", str(path), target, timeout_s=_UPLOAD_S)

    def _chunks(self, path: str, size: int | None) -> Iterator[bytes]:
        if size is None:
            size = self._do("info", path)["size"]
        for begin in range(0, size, CHUNK_BYTES):
            end = min(begin + CHUNK_BYTES, size)
            try:
                data = self._do("cat_file", path, start=begin, end=end + (end == size))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return  # it ends before the range
            yield data
            if len(data) < end - begin:
                return

    def _names(self, path: str) -> dict[str, int]:
        found = self._do("find", path, detail=True)
        return {name.removeprefix(f"{path}/"): int(each["size"]) for name, each in found.items()}

    def _remove(self, path: str) -> None:
        self._do("info", path)  # some servers do not answer the removal of what is not there
        self._do("rm_file", path)

    def stage(self, directory: str) -> str:
        """Return where to put the files of a directory that is not visible yet; what was left goes."""
        return directory

    def commit(self, directory: str, name: str, data: bytes) -> None:
        """Put the last file of a staged directory, which makes it visible; a visible one stays."""
        self.put(f"{directory}/{name}", data)

    def retract(self, directory: str, name: str) -> None:
        """Remove a directory, its last file first."""
        self.remove(f"{directory}/{name}")
        for each in self.names(directory):
            self.remove(f"{directory}/{each}")


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
