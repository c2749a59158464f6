"""Stores: files below a directory, in a bucket, or in a repository of the Hugging Face Hub.

A directory may be on a network file system. Buckets are ``s3://bucket/prefix`` (extra ``s3``),
``gs://bucket/prefix`` (Google Cloud Storage, extra ``gcs``) and ``az://container/prefix`` (Azure Blob
Storage, extra ``azure``). ``hf://datasets/OWNER/NAME[@REVISION][/PATH]`` is a repository of the Hugging Face
Hub (extra ``hf``). It is written by commits only, and tested with a local server instead of the Hub.

Keys are relative paths, such as ``sessions/NAME/tape.npy``. Writing a file is atomic and replaces an existing
file. No operation is conditional, because some servers ignore conditions: derive a unique key from the
content. Listings are never cached.

To make a directory of files appear atomically, upload its files in a block of :meth:`Store.publishing`. In a
bucket, readers look for the key that is written last. In a directory, the files are in a draft until a
rename. obstore's local store neither flushes nor has drafts, so directories do not use it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import stat
from abc import ABC, abstractmethod
from datetime import timedelta
from http import HTTPStatus
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tape2048.errors import (
    ConfigError,
    MissingPackageError,
    MissingPathError,
    NameTakenError,
    StorageError,
    StoreError,
    TapeError,
    masked,
)
from tape2048.files.durable import (
    Draft,
    fsync_dir,
    hide_directory,
    new_file,
    replace_file,
    write_all,
    write_file,
)
from tape2048.files.opening import open_fd
from tape2048.files.reading import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

#: Bytes of one read or write.
CHUNK_BYTES = 8 * 1024 * 1024

#: Seconds without a byte after which a request fails; retries of a failed request; concurrent parts of an
#: upload; the most parts of a file.
_ANSWER_S, _RETRIES, _PARTS_AT_ONCE, _PARTS_MAX = 60, 2, 4, 10_000


class _Service(NamedTuple):
    client: str  # obstore's class
    extra: str
    server: str  # the environment variable with the address of another server
    settings: str  # other settings to check after an error


_SERVICES = {
    "s3": _Service("S3Store", "s3", "AWS_ENDPOINT_URL", "the region (AWS_REGION), the credentials"),
    "gs": _Service(
        "GCSStore", "gcs", "GOOGLE_BASE_URL", "the credentials (GOOGLE_APPLICATION_CREDENTIALS)"
    ),
    "az": _Service(
        "AzureStore", "azure", "AZURE_STORAGE_ENDPOINT",
        "the account (AZURE_STORAGE_ACCOUNT_NAME), its key (AZURE_STORAGE_ACCOUNT_KEY)",
    ),
}  # fmt: skip


class Store(ABC):
    """Files below a URL. Every method raises StoreError if the store rejects it or does not answer."""

    url: str

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small file."""
        with self._reached(key, "writing") as path:
            self._put(path, data)

    def upload(self, key: str, path: Path) -> None:
        """Write or replace a file with the content of a local file."""
        with open_regular(path) as source, self._reached(key, "writing") as target:
            self._upload(target, source)

    def chunks(self, key: str) -> Iterator[bytes]:
        """Yield the content of a file; raise MissingPathError if it does not exist."""
        with self._reached(key, "reading") as path:
            yield from self._chunks(path)

    def names(self, directory: str) -> dict[str, int]:
        """Return the sizes of all files below a directory, by relative path; hidden files are left out."""
        with self._reached(directory, "listing") as path:
            return self._names(path)

    def remove(self, key: str) -> None:
        """Remove a file, if it exists."""
        with self._reached(key, "removing") as path, contextlib.suppress(FileNotFoundError):
            self._remove(path)

    @contextlib.contextmanager
    def publishing(self, directory: str, name: str, data: bytes) -> Iterator[str]:
        """Yield the key below which to write the files of a new directory.

        Readers see the directory from the end of the block, when a last file, of this name and content, is
        written. An existing directory stays.
        """
        yield directory
        self.put(f"{directory}/{name}", data)

    def retract(self, directory: str, name: str) -> None:
        """Remove a directory, its last file first."""
        for each in (name, *self.names(directory)):
            self.remove(f"{directory}/{each}")

    def get(self, key: str, bytes_max: int) -> bytes:
        data = b""
        for chunk in self.chunks(key):
            data += chunk
            if len(data) > bytes_max:
                raise StoreError(
                    f"found more than {bytes_max} bytes, expected a small file", path=self.path(key)
                )
        return data

    def path(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    # The methods above call these, with the path or address that _reached() yields.
    @abstractmethod
    def _reached(self, key: str, doing: str) -> AbstractContextManager[Any]: ...
    @abstractmethod
    def _put(self, path: Any, data: bytes) -> None: ...
    @abstractmethod
    def _upload(self, target: Any, source: int) -> None: ...
    @abstractmethod
    def _chunks(self, path: Any) -> Iterator[bytes]: ...
    @abstractmethod
    def _names(self, path: Any) -> dict[str, int]: ...
    @abstractmethod
    def _remove(self, path: Any) -> None: ...


@contextlib.contextmanager
def naming(address: str) -> Iterator[None]:
    """Name an address as the user gave it in the errors of a store, in place of a key below it."""
    try:
        yield
    except StorageError as error:
        error.path = masked(address)
        raise


def open_store(url: str, given: str | None = None) -> Store:
    """Open the store of an address. ``given`` is the user's text, if the address is a part of it."""
    scheme, colon, rest = url.partition("://")
    is_path = not re.match("(s3|gs|az|hf):", url)  # ./s3: is a directory of this name
    if (not colon and is_path) or scheme == "file":
        return DirectoryStore(Path(os.path.abspath(rest if colon else url)))
    if scheme in _SERVICES and rest.strip("/"):
        return BucketStore(scheme, rest.strip("/"))
    if colon and scheme == "hf":
        return HubStore(url)
    raise ConfigError(
        f"found the address {given or url!r}, expected a directory, s3://bucket/prefix, gs://bucket/prefix, "
        "az://container/prefix or hf://datasets/OWNER/NAME",
        hint="mount other stores as a directory, or reach them by their S3 gateway (AWS_ENDPOINT_URL)",
    )


class DirectoryStore(Store):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    @contextlib.contextmanager
    def _reached(self, key: str, doing: str) -> Iterator[Path]:
        path = self.root / key
        try:
            yield path
        except FileNotFoundError as error:
            raise MissingPathError("no such file or directory", path=path) from error
        except OSError as error:
            raise StoreError(f"{doing} failed ({error.strerror or error})", path=path) from error

    def _make_directory(self, path: Path) -> None:
        """Make a directory below the root, durably. A missing root (not mounted, for example) is an error."""
        if path != self.root and not path.is_dir():
            self._make_directory(path.parent)
            path.mkdir(exist_ok=True)
            fsync_dir(path.parent)

    def _put(self, path: Path, data: bytes) -> None:
        self._make_directory(path.parent)
        replace_file(path, data)

    def _upload(self, target: Path, source: int) -> None:
        self._make_directory(target.parent)
        with new_file(target, replace=True) as fd:
            while data := os.read(source, CHUNK_BYTES):
                write_all(fd, data)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        with open_fd(path, os.O_RDONLY | os.O_NONBLOCK) as fd:  # it may be a FIFO
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
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

    @contextlib.contextmanager
    def publishing(self, directory: str, name: str, data: bytes) -> Iterator[str]:
        with self._reached(directory, "publishing") as target:
            self._make_directory(target.parent)
            with Draft(target) as draft:
                yield draft.path.relative_to(self.root).as_posix()
                write_file(draft.path / name, data)
                with contextlib.suppress(NameTakenError):  # another agent, with a copied spool, was faster
                    draft.publish()
            # Drafts of killed processes, if there are no locks or an earlier release made the draft. A live
            # process that loses its draft finds the target.
            remains = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]+\.(tmp|partial)")
            for left in target.parent.iterdir():
                if remains.fullmatch(left.name):
                    shutil.rmtree(left, ignore_errors=True)

    def retract(self, directory: str, name: str) -> None:
        with self._reached(directory, "removing") as path, contextlib.suppress(FileNotFoundError):
            hidden = path.with_name(f".{path.name}.removed")
            shutil.rmtree(hidden, ignore_errors=True)
            hidden = hide_directory(path, hidden, name)
            fsync_dir(path.parent)
            shutil.rmtree(hidden)


class BucketStore(Store):
    """Objects below a prefix of a bucket. Environment variables give its address and credentials."""

    def __init__(self, scheme: str, root: str) -> None:
        self.url = masked(f"{scheme}://{root}")
        self._service = _SERVICES[scheme]
        self._bucket, _, self._prefix = root.partition("/")
        #: By process. A forked child keeps its parent's client, since it lacks the threads to free it.
        self._clients: dict[int, Any] = {}
        server = self._service.server
        if not (found := os.environ.get(server, "http:")).startswith(("http:", "https:")):
            raise ConfigError(f"{server} is {found!r}; expected http://... or https://...")
        try:
            _obstore(os.getpid())
        except ImportError as error:
            raise MissingPackageError(
                f"{scheme}:// needs the package obstore",
                path=self.url,
                hint=f"pip install 'tape2048[{self._service.extra}]'",
            ) from error

    def _do(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a function of obstore in this process."""
        obstore = _obstore(pid := os.getpid())
        if pid not in self._clients:
            credentials, kind = None, self._service.client
            if kind == "S3Store" and "AWS_ACCESS_KEY_ID" not in os.environ:
                with contextlib.suppress(ImportError, ValueError):  # boto3 is missing, or finds none
                    from obstore.auth.boto3 import Boto3CredentialProvider

                    credentials = Boto3CredentialProvider()
            client = getattr(obstore._store, kind)(  # noqa: SLF001
                self._bucket,
                prefix=self._prefix or None,
                client_options={
                    "allow_http": True,  # the address of a server may start with http://
                    "connect_timeout": "5s",
                    "read_timeout": f"{_ANSWER_S}s",
                    "timeout": "1day",  # for a whole file. The default is 30 s
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=30)},
                credential_provider=credentials,
            )
            self._clients.setdefault(pid, client)
        return getattr(obstore, name)(self._clients[pid], *args, **options)

    @contextlib.contextmanager
    def _reached(self, key: str, doing: str) -> Iterator[str]:
        try:
            yield key
        except BaseException as error:  # of obstore, which may panic, or boto3
            if isinstance(error, (TapeError, KeyboardInterrupt, SystemExit, GeneratorExit)):
                raise
            text, _, details = str(error).partition("\n\nDebug source")
            gone = isinstance(error, FileNotFoundError)
            if gone or re.search("NoSuchBucket|ContainerNotFound", text):
                hint = "check the spelling of the bucket and the prefix; make the bucket if it is missing"
                raise MissingPathError("no such object", path=self.path(key), hint=hint) from error
            causes = re.findall(r'(?:message|error): "([^"]+)"', details)[-1:]
            if "kind: Timeout" in details:
                causes = [f"no answer within {_ANSWER_S} s"]
            why = " ".join(re.sub(r"<[^>]*>", " ", text).split())  # servers answer in XML
            message = f"{doing} failed ({': '.join([*causes, type(error).__name__, why])})"
            hint = f"Check the address ({self._service.server}), {self._service.settings} and the network."
            raise StoreError(message, path=self.path(key), hint=hint) from error

    def _put(self, path: str, data: bytes) -> None:
        self._do("put", path, data)

    def _upload(self, target: str, source: int) -> None:
        part = max(CHUNK_BYTES, -(-os.fstat(source).st_size // _PARTS_MAX))
        with self._do("open_writer", target, buffer_size=part, max_concurrency=_PARTS_AT_ONCE) as writer:
            while data := os.read(source, CHUNK_BYTES):
                writer.write(data)

    def _chunks(self, path: str) -> Iterator[bytes]:
        yield from map(bytes, self._do("get", path).stream(CHUNK_BYTES))

    def _names(self, path: str) -> dict[str, int]:
        pages = self._do("list", path)
        found = {each["path"].removeprefix(f"{path}/"): each["size"] for page in pages for each in page}
        if not found:
            self._refuse_portal(path)
        return found

    def _refuse_portal(self, path: str) -> None:
        """Raise StoreError if the server has an object of a random name, as a proxy's login page seems to be.

        obstore reads a listing that is HTML as an empty listing.
        """
        name = f"{path}/.{secrets.token_hex(8)}".lstrip("/")
        try:
            text = bytes(self._do("get", name).bytes()[:80])
        except FileNotFoundError:
            return
        raise StoreError(
            f"found {text!r} under a name that does not exist; expected a listing",
            path=self.path(path),
            hint="Check the network: a proxy or a login page may answer in place of the store.",
        )

    def _remove(self, path: str) -> None:
        self._do("delete", path)


class HubStore(Store):
    """Files below a path of a repository of the Hugging Face Hub, which only :meth:`commit` changes.

    ``HF_TOKEN`` or ``hf auth login`` gives access to private repositories, and ``HF_ENDPOINT`` names another
    server. Each request reads the newest commit of the revision. If a commit is made between two requests,
    checksums detect the mixture.
    """

    def __init__(self, url: str) -> None:
        self.url = masked(url.rstrip("/"))
        logging.getLogger("huggingface_hub.utils._http").addFilter(_mask)  # it logs addresses of requests
        try:
            from huggingface_hub import constants
            from huggingface_hub.errors import HfUriError
            from huggingface_hub.utils import parse_hf_uri
        except ImportError as error:
            raise MissingPackageError(
                "hf:// needs the package huggingface_hub", path=url, hint="pip install 'tape2048[hf]'"
            ) from error
        try:
            self._place = parse_hf_uri(url)
        except HfUriError as error:
            raise ConfigError(
                f"found the address {url!r}, expected hf://datasets/OWNER/NAME[@REVISION][/PATH]",
                hint=str(error),
            ) from error
        self._root = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")

    @contextlib.contextmanager
    def _reached(self, key: str, doing: str) -> Iterator[str]:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

        try:
            yield "/".join(filter(None, (self._place.path_in_repo, key)))
        except EntryNotFoundError as error:
            raise MissingPathError("no such file in the repository", path=self.path(key)) from error
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise MissingPathError(
                "no such repository or revision, or no access to it",
                path=self.path(key),
                hint="Check the spelling. For a private repository, and to publish, set HF_TOKEN to a token "
                "with access to it, or run: hf auth login",
            ) from error
        except Exception as error:  # of the library or its HTTP client
            if isinstance(error, TapeError):
                raise
            if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
                error = error.__cause__  # of the upload of a file
            status = getattr(getattr(error, "response", None), "status_code", None)
            causes = [f"HTTP {status}"] if status else []
            why = ": ".join([*causes, type(error).__name__, " ".join(str(error).split())])
            hint = "Check the address (HF_ENDPOINT), the token (HF_TOKEN) and the network."
            if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
                hint = f"Set HF_TOKEN to a token with access to {self._place.id}, or run: hf auth login. "
                hint += "To publish, the token needs the permission to write."
            raise StoreError(f"{doing} failed ({why})", path=self.path(key), hint=hint) from error

    def _get(self, url: str, **headers: str) -> Any:
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        asked = {**build_hf_headers(), **headers}
        answer = http_backoff("GET", url, headers=asked, max_retries=_RETRIES, timeout=_ANSWER_S)
        if answer.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            hf_raise_for_status(answer)
        return answer

    def _chunks(self, path: str) -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url

        place, first = self._place, 0
        url = hf_hub_url(place.id, path, repo_type=place.type, revision=place.revision, endpoint=self._root)
        while True:
            found = self._get(url, Range=f"bytes={first}-{first + CHUNK_BYTES - 1}")
            if found.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # of an empty file
                return
            yield found.content
            first += len(found.content)
            size = found.headers.get("Content-Range", "").rpartition("/")[2]
            if found.status_code != HTTPStatus.PARTIAL_CONTENT or not found.content or first >= int(size):
                return

    def _names(self, path: str) -> dict[str, int]:
        from huggingface_hub.errors import EntryNotFoundError

        place, found = self._place, {}
        tree = quote(place.revision or "main", safe=""), *map(quote, filter(None, [path]))
        url = f"{self._root}/api/{place.type}s/{place.id}/tree/{'/'.join(tree)}?recursive=true"
        while url:
            try:
                answer = self._get(url)
            except EntryNotFoundError:
                break
            for each in answer.json():
                name = each["path"].removeprefix(f"{path}/")
                if each["type"] == "file" and not re.search(r"(^|/)\.", name):
                    found[name] = each["size"]
            url = answer.links.get("next", {}).get("url", "")
        return found

    def commit(
        self,
        files: Mapping[str, Path | bytes],
        message: str,
        *,
        removed: Iterable[str] = (),
        private: bool = False,
    ) -> str:
        """Write files and remove directories in one commit, which readers see atomically; return its address.

        Repeat an interrupted call to continue it: files that the server has are not uploaded again.
        ``private`` is for a missing repository.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        with self._reached("", "publishing") as root:
            api, at = HfApi(self._root), f"{root}/" if root else ""
            repository = {"repo_id": self._place.id, "repo_type": self._place.type}
            api.create_repo(**repository, private=private or None, exist_ok=True)
            changes = [CommitOperationAdd(f"{at}{key}", content) for key, content in files.items()]
            changes += [CommitOperationDelete(f"{at}{key}/") for key in removed]
            revision = self._place.revision
            done = api.create_commit(
                **repository, operations=changes, commit_message=message, revision=revision
            )
            return str(done.commit_url)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError(
            "a repository of the Hugging Face Hub is read-only for this command", path=self.url,
            hint="Publish sessions by `tape2048 publish`, or choose a directory or a bucket.",
        )  # fmt: skip

    _put = _upload = _remove = _refuse


_IMPORTED_IN = os.getpid()
_LIBRARIES: dict[int, Any] = {}


def _obstore(pid: int) -> Any:
    """Return obstore for a process. A forked child loads a second copy.

    The parent's copy would wait for threads that a forked child does not have. Only Linux loads a library
    from memory: on other systems, a forked child cannot use buckets.
    """
    if pid not in _LIBRARIES:
        from obstore import _obstore as library

        if pid != _IMPORTED_IN and hasattr(os, "memfd_create"):
            fd = os.memfd_create("obstore")  # dlopen returns the loaded library for the same file
            loader = ExtensionFileLoader(library.__name__, f"/proc/{pid}/fd/{fd}")
            shutil.copyfile(library.__file__, loader.path)
            library = module_from_spec(ModuleSpec(loader.name, loader, origin=loader.path))
            loader.exec_module(library)
            os.close(fd)
        _LIBRARIES.setdefault(pid, library)  # another thread may have been faster: clients need its library
    return _LIBRARIES[pid]


def _mask(record: logging.LogRecord) -> bool:
    record.msg, record.args = masked(record.getMessage()), ()
    return True


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
