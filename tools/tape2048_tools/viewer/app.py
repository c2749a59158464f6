"""The web server: routes, access control, error answers, the printed link, and an immediate end on Ctrl-C.

Only GET is allowed. The ``Host`` header must be on a list, so that another site's name cannot point here. The
token of the printed link becomes a cookie that no script reads and no other site's link carries. Links hold
ids, never paths, and static files are served from a list made at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import importlib.resources
import secrets
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tape2048.errors import ConfigError, FormatError, MissingPackageError, MissingPathError, TapeError
from tape2048_tools.terminal.background import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tape2048_tools.viewer.data import Data

    T = TypeVar("T")
    _Make = Callable[[Mapping[str, str]], dict[str, Any] | bytes]

#: Interval of the messages of ``/api/live``.
LIVE_S = 1.0

#: Computations at a time; others wait.
_JOBS_MAX = 4

#: Interval of the checks whether all sessions are read.
_READING_S = 0.2

#: Switch interval of the interpreter. An answer takes many short turns. With Python's 5 ms, a running
#: computation would delay each of them.
_TURN_S = 0.0005

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def static_files() -> dict[str, bytes]:
    """Return the files of the pages by name."""
    folder = importlib.resources.files(__package__) / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


def make_app(data: Data, token: str, hosts: Collection[str], cookie: str) -> ASGIApp:
    """Return the application."""
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    files, free = static_files(), asyncio.Semaphore(_JOBS_MAX)

    async def page(_: Request) -> Response:
        response = Response(files["index.html"], media_type="text/html")
        response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files or name == "index.html":
            return _refusal(404, "no file has this name")
        return Response(files[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def live(_: Request) -> Response:
        return StreamingResponse(_events(data, free), media_type="text/event-stream")

    async def missing(_: Request, __: Exception) -> Response:
        return _refusal(404, "no page or document has this address")

    documents: dict[str, _Make] = {
        "about": data.about, "overview": data.overview, "sample": data.sample, "sessions": data.sessions,
        "games": data.games, "replay": data.replay, "twins": data.twins, "choices": data.choices,
        "judges": data.judge_list, "opinions": data.opinions, "latest": data.latest, "board": data.board,
        "play-on": data.play_on, "training": data.training, "examination": data.examination,
    }  # fmt: skip
    routes: dict[str, Any] = {"/": page, "/static/{name}": static, "/api/live": live}
    routes |= {f"/api/{name}": _answering(make, free) for name, make in documents.items()}
    app = Starlette(
        routes=[Route(path, endpoint) for path, endpoint in routes.items()], exception_handlers={404: missing}
    )
    return _guarded(app, token, hosts, cookie)


async def _computed(free: asyncio.Semaphore, work: Callable[[], T]) -> T:
    async with free:
        return await asyncio.wrap_future(in_background(work))


def _answering(make: _Make, free: asyncio.Semaphore) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that computes a document from the parameters of a link."""
    from starlette.responses import Response

    async def answer(request: Request) -> Response:
        try:
            kind, content = await _computed(free, lambda: encoded(make(request.query_params)))
        except Exception as error:  # noqa: BLE001 - no request ends the server
            return _failure(request.url.path, error)
        return Response(content, media_type=f"application/{kind}")

    def encoded(found: dict[str, Any] | bytes) -> tuple[str, bytes]:
        return ("octet-stream", found) if isinstance(found, bytes) else ("json", msgspec.json.encode(found))

    return answer


async def _events(data: Data, free: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """Yield the state of recorders and trainings once a second, as server-sent events."""
    while True:
        try:
            document = await _computed(free, data.live)
        except (TapeError, OSError) as error:
            document = {"error": str(error)}
        yield b"data: " + msgspec.json.encode(document) + b"\n\n"
        await asyncio.sleep(LIVE_S)


def _guarded(app: ASGIApp, token: str, hosts: Collection[str], cookie: str) -> ASGIApp:
    """Let only GET requests to these hosts with the token pass; add the headers of every answer."""
    from starlette.requests import Request

    allowed = {host.lower() for host in hosts}
    added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        request, refusal = Request(scope), None
        given = request.cookies.get(cookie, "")
        if request.url.path == "/":
            given = request.query_params.get("token", given)
        if request.headers.get("host", "").lower() not in allowed:
            refusal = _refusal(421, "this host name is not allowed; --allow-host NAME allows it")
        elif request.method != "GET":
            refusal = _refusal(405, "only GET is allowed")
        elif not secrets.compare_digest(given.encode(), token.encode()):
            refusal = _refusal(
                403, "open the link that `tape2048 view` printed: it holds the token of this viewer"
            )
        await (refusal or app)(scope, receive, send_with_headers)

    return guarded


def _refusal(code: int, message: str, error: str = "", hint: str | None = None) -> Response:
    from starlette.responses import Response

    document = {"error": error or http.HTTPStatus(code).phrase, "message": message, "hint": hint}
    return Response(msgspec.json.encode(document), code, media_type="application/json")


def _failure(path: str, error: Exception) -> Response:
    """Return the answer to a request that failed; an unknown error is a defect of the viewer."""
    if isinstance(error, TapeError):
        kinds = {MissingPathError: 404, ConfigError: 422, FormatError: 422}
        code = next((code for kind, code in kinds.items() if isinstance(error, kind)), 409)
        return _refusal(code, str(error), type(error).__name__, error.advice)
    if isinstance(error, ValueError):
        return _refusal(400, str(error))
    if isinstance(error, OSError):
        return _refusal(409, error.strerror or str(error), type(error).__name__)
    traceback.print_exception(error, file=sys.stderr)
    return _refusal(500, f"the viewer has a defect: {path}: {error}")


def require_server() -> Any:
    """Return uvicorn; raise MissingPackageError if it or starlette is not installed."""
    try:
        import starlette  # noqa: F401 - a clear message before anything is read
        import uvicorn
    except ImportError as error:
        raise MissingPackageError(
            f"the viewer needs starlette and uvicorn ({error})", hint="pip install 'tape2048[view]'"
        ) from error
    return uvicorn


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; ConfigError for a port in use or an address of another machine."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except (OSError, OverflowError) as error:
        found.close()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise ConfigError(
            f"port {port} of {host} cannot be listened on ({getattr(error, 'strerror', None) or error})",
            hint="--port 0 takes a free one" if in_use else "--host names an address of this machine",
        ) from error
    return found


def serve(
    data: Data, host: str, port: int, *, allowed: Sequence[str] = (), started: Callable[[str], object]
) -> None:
    """Serve the viewer until the process is interrupted."""
    uvicorn = require_server()
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    named = f"[{host}]" if ":" in host else host
    hosts = {f"{one}:{port}" for one in (*_LOOPBACK, named, *allowed)}
    if port == 80:  # browsers leave it out
        hosts |= {one.rpartition(":")[0] for one in hosts}
    app = make_app(data, token, hosts, f"tape2048_view_{port}")
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0,
        server_header=False, date_header=False,
    )  # fmt: skip
    wildcard = host in {"0.0.0.0", "::"}  # noqa: S104 - only where the user asks for it
    sys.setswitchinterval(_TURN_S)
    threading.Thread(target=_prepare, args=(data,), daemon=True).start()
    # The socket listens already: a browser that is faster than the server waits for it.
    started(f"http://{'127.0.0.1' if wildcard else named}:{port}/?token={token}")
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _prepare(data: Data) -> None:
    """Read the sessions, then judge one game, so that the first requested game waits for no loading."""
    while data.collection.games().waiting:
        time.sleep(_READING_S)
    with contextlib.suppress(TapeError, OSError):  # the request that needs it reports the error
        data.warm_up()
