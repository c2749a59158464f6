"""The web server: routes, access control, error answers, the printed link, and an immediate end on Ctrl-C.

Only GET is allowed. The ``Host`` header must be on a list, so that another site's name cannot point here. A
printed link works once: the page exchanges its token for the key that every request for a document needs. The
page keeps the key in its storage and not in a cookie, which all servers on the same address would receive.
Links contain ids, never paths. Static files need no key, and are served from a list made at start.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import http
import resource
import secrets
import sys
import threading
import time
import traceback
import urllib.parse
from typing import TYPE_CHECKING, Any, TypeAlias

from tape2048.base.text import json_bytes
from tape2048.errors import ConfigError, FormatError, MissingPathError, TapeError
from tape2048_recorder.status.server import BoundedServer
from tape2048_tools.terminal.output import complain
from tape2048_tools.viewer.assets import served
from tape2048_tools.viewer.collection import stopped
from tape2048_tools.viewer.report import game_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tape2048_tools.viewer.data import Data

    _Make = Callable[[Mapping[str, str]], dict[str, Any] | bytes]

# Status, media type and content.
_Answer: TypeAlias = tuple[int, str, bytes]

#: Most computations at a time, and most connections. Further computations wait. For a further connection, an
#: idle one is closed.
_JOBS_MAX, _CONNECTIONS_MAX = 4, 128

#: Interval of the checks whether all sessions are read, and whether a waiting client has disconnected.
_READING_S = 0.2

#: Switch interval of the interpreter. An answer takes many short turns. With Python's 5 ms, a running
#: computation would delay each of them.
_TURN_S = 0.0005

_GZIPPED = b"\x1f\x8b"  # the first bytes
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The key of the pages, and a link that delivers it once. After its use, the next link is printed."""

    def __init__(self, address: str) -> None:
        self._address = f"{address}/?token="
        self._lock = threading.Lock()
        self.key, self.link = secrets.token_urlsafe(24), self._address + secrets.token_urlsafe(24)

    def redeem(self, token: str) -> str:
        with self._lock:
            if not secrets.compare_digest(f"{self._address}{token}".encode(), self.link.encode()):
                return ""
            self.link = self._address + secrets.token_urlsafe(24)
        complain(f"The link for another browser: {self.link}")
        return self.key

    def grants(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), f"Bearer {self.key}".encode())


def make_app(data: Data, access: Access, hosts: Collection[str]) -> Callable[..., list[bytes]]:
    assets, free = served(), threading.Semaphore(_JOBS_MAX)
    allowed = {host.lower() for host in hosts}
    documents: dict[str, _Make] = {
        "about": data.about, "overview": data.overview, "sample": data.sample, "sessions": data.sessions,
        "games": data.games, "replay": data.replay, "twins": data.twins, "choices": data.choices,
        "judges": data.judge_list, "opinions": data.opinions, "latest": data.latest, "board": data.board,
        "play-on": data.play_on, "rollouts": data.rollouts, "training": data.training,
        "examination": data.examination, "live": data.live, "newest": data.newest,
        "cards": data.cards, "players": data.players,
        "game": lambda given: game_file(data, *data.chosen_game(given)),
    }  # fmt: skip

    def answer(environ: dict[str, Any]) -> _Answer:  # noqa: PLR0911 - a line for each refusal
        given = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
        path = environ["PATH_INFO"]
        folder, _, name = path[1:].partition("/")
        if environ.get("HTTP_HOST", "").lower() not in allowed:
            return _refusal(421, "this host name is not allowed. Allow it with --allow-host NAME")
        if environ["REQUEST_METHOD"] != "GET":
            return _refusal(405, "only GET is allowed")
        if path == "/":
            key = access.redeem(given.get("token", ""))
            found = assets.page.replace(b'data-key=""', f'data-key="{key}"'.encode())
            return 200, _TYPES["html"], found
        if folder == "static" and name in assets.files:
            packed = "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "")
            return 200, _TYPES[name.rpartition(".")[2]], assets.files[name][packed]
        if folder == "api" and not access.grants(environ.get("HTTP_AUTHORIZATION", "")):
            return _refusal(403, "open the link that `tape2048 view` printed last: each link works once")
        if folder != "api" or name not in documents:
            return _refusal(404, "no page or document has this address")
        return _computed(lambda: documents[name](given), free, environ)

    def app(environ: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        code, kind, content = answer(environ)
        headers = {**_HEADERS, "content-type": f"{kind}; charset=utf-8", "content-length": str(len(content))}
        if environ["PATH_INFO"].startswith("/static/"):
            headers |= _of_static(content, is_current=environ["QUERY_STRING"] == f"v={assets.version}")
        start(f"{code} {http.HTTPStatus(code).phrase}", [*headers.items()])
        return [content]

    return app


def _of_static(content: bytes, *, is_current: bool) -> dict[str, str]:
    """Return the headers of a file: a browser keeps one whose address names the content."""
    encoded = {"content-encoding": "gzip"} if content[:2] == _GZIPPED else {}
    kept = {"cache-control": "private, max-age=31536000, immutable"} if is_current else {}
    return {"vary": "accept-encoding", **encoded, **kept}


def _computed(make: Callable[[], Any], free: threading.Semaphore, environ: dict[str, Any]) -> _Answer:
    """Compute a document, which stops once its client has disconnected."""
    stopped.set(environ["is_gone"])
    while not free.acquire(timeout=_READING_S):
        if environ["is_gone"]():
            return _refusal(409, "the client is gone")
    try:
        made = make()
        if isinstance(made, bytes):
            return 200, "application/octet-stream", made
        return 200, "application/json", json_bytes(made)
    except Exception as error:  # noqa: BLE001 - no request ends the server
        return _failure(environ["PATH_INFO"], error)
    finally:
        free.release()


def _refusal(code: int, message: str, error: str = "", hint: str | None = None) -> _Answer:
    document = {"error": error or http.HTTPStatus(code).phrase, "message": message, "hint": hint}
    return code, "application/json", json_bytes(document)


def _failure(path: str, error: Exception) -> _Answer:
    if isinstance(error, TapeError):
        kinds = {MissingPathError: 404, ConfigError: 400, FormatError: 422}
        code = next((code for kind, code in kinds.items() if isinstance(error, kind)), 409)
        return _refusal(code, str(error), type(error).__name__, error.advice)
    if isinstance(error, ValueError | OverflowError | RecursionError):
        return _refusal(400, str(error))
    if isinstance(error, OSError):
        return _refusal(409, error.strerror or str(error), type(error).__name__)
    traceback.print_exception(error, file=sys.stderr)
    return _refusal(500, f"the viewer has a defect: {path}: {error}")


def serve(
    data: Data, host: str, port: int, *, allowed: Sequence[str] = (), started: Callable[[str], object]
) -> None:
    # A connection needs a file descriptor, and its computation needs some more.
    most = min(_CONNECTIONS_MAX, max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
    try:
        server = BoundedServer(host, port, None, most)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise ConfigError(
            f"cannot listen on port {port} of {host} ({getattr(error, 'strerror', None) or error})",
            hint="Pass --port 0 for any free port."
            if in_use
            else "Pass an address of this machine to --host.",
        ) from error
    port = server.server_port
    named = f"[{host}]" if ":" in host else host
    hosts = {f"{one}:{port}" for one in (*_LOOPBACK, named, *allowed)}
    if port == 80:  # browsers omit it
        hosts |= {one.rpartition(":")[0] for one in hosts}
    wildcard = host in {"0.0.0.0", "::"}  # noqa: S104 - only where the user asks for it
    sys.setswitchinterval(_TURN_S)
    threading.Thread(target=_prepare, args=(data,), daemon=True).start()
    access = Access(f"http://{'127.0.0.1' if wildcard else named}:{port}")
    server.set_app(make_app(data, access, hosts))
    said = "tape2048 view: too many connections. The oldest idle connections are closed"
    server.on_full = functools.cache(lambda: complain(said))
    # The socket listens already: a browser that is faster than the server waits for it.
    started(access.link)
    server.serve_forever()


def _prepare(data: Data) -> None:
    """Read the sessions, then judge one game, so that the first requested game need not wait for it."""
    while data.collection.games().waiting:
        time.sleep(_READING_S)
    with contextlib.suppress(TapeError, OSError):  # the request that needs it reports the error
        data.warm_up()
