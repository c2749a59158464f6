"""The web application: routes, who may ask, and answers to what cannot be answered.

Only GET; the ``Host`` has to be one of a list, so that no other site's name can point here; a token of the
printed link becomes a cookie that no script reads and no other site's link carries. Links hold ids, never
paths, and files are served from a list made at start.
"""

from __future__ import annotations

import asyncio
import http
import importlib.resources
import secrets
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.errors import ConfigError, FormatError, MissingPathError, TapeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from typing import TypeVar

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tape2048_tools.viewer.data import Data

    T = TypeVar("T")

#: Seconds between two looks at status files.
LIVE_S = 1.0

#: Computations at a time; others wait.
_JOBS_MAX = 4

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
    """Return the application.

    Args:
        data: what the pages show.
        token: of the printed link.
        hosts: allowed values of the header ``Host``.
        cookie: name of the cookie; viewers on two ports of one host have two names.
    """
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    files = static_files()
    jobs = _Jobs()

    def answering(make: Callable[[Mapping[str, str]], dict[str, Any] | bytes]) -> Any:
        async def answer(request: Request) -> Response:
            try:
                found = await jobs.run(lambda: _encoded(make(request.query_params)))
            except Exception as error:  # noqa: BLE001 - no request ends the server
                return refusal_of(request.url.path, error)
            return _response(*found)

        return answer

    async def page(_: Request) -> Response:
        response = _response(files["index.html"], "text/html")
        response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files or name == "index.html":
            return _refusal(404, "nothing here has this name")
        return _response(files[name], _TYPES[name.rpartition(".")[2]])

    async def live(_: Request) -> Response:
        return StreamingResponse(_events(data, jobs), media_type="text/event-stream")

    routes: dict[str, Callable[[Mapping[str, str]], Any]] = {
        "about": data.about, "overview": data.overview, "sample": data.sample, "sessions": data.sessions,
        "games": data.games, "replay": data.replay, "twins": data.twins, "choices": data.choices,
        "judges": data.judge_list, "opinions": data.opinions, "latest": data.latest, "board": data.board,
        "play-on": data.play_on, "training": data.training, "examination": data.examination,
    }  # fmt: skip
    app: Starlette = Starlette(
        routes=[
            Route("/", page, methods=["GET"]),
            Route("/static/{name}", static, methods=["GET"]),
            Route("/api/live", live, methods=["GET"]),
            *(Route(f"/api/{name}", answering(make), methods=["GET"]) for name, make in routes.items()),
        ],
        exception_handlers={404: _on_missing},
    )
    return _Guard(app, token, hosts, cookie)


class _Guard:
    """Lets only requests to this host with the token pass, and only GET; adds the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str], cookie: str) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {host.lower() for host in hosts}
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        from starlette.requests import Request

        request = Request(scope)
        if request.headers.get("host", "").lower() not in self._hosts:
            return _refusal(421, "this host name is not served here (--allow-host NAME adds one)")
        if request.method != "GET":
            return _refusal(405, "only GET is answered")
        given = request.cookies.get(self._cookie, "")
        if request.url.path == "/":
            given = request.query_params.get("token", given)
        if not secrets.compare_digest(given.encode(), self._token):
            return _refusal(
                403, "open the link that `tape2048 view` printed: it holds the token of this viewer"
            )
        return None


class _Jobs:
    """Threads for computations; they end with the process, so that Ctrl-C never waits for one."""

    def __init__(self) -> None:
        self._free: asyncio.Semaphore | None = None

    async def run(self, work: Callable[[], T]) -> T:
        self._free = self._free or asyncio.Semaphore(_JOBS_MAX)
        async with self._free:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()

            def settle(result: T | None, error: BaseException | None) -> None:
                if future.cancelled():
                    return
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)  # type: ignore[arg-type]

            def job() -> None:
                result, error = None, None
                try:
                    result = work()
                except BaseException as raised:  # noqa: BLE001 - it is raised again where the answer is awaited
                    error = raised
                if not loop.is_closed():
                    loop.call_soon_threadsafe(settle, result, error)

            threading.Thread(target=job, daemon=True).start()
            return await future


def _encoded(found: dict[str, Any] | bytes) -> tuple[bytes, str]:
    if isinstance(found, bytes):
        return found, "application/octet-stream"
    return msgspec.json.encode(found), "application/json"


async def _events(data: Data, jobs: _Jobs) -> AsyncIterator[bytes]:
    """Yield the state of recorders and trainings, each second, as server-sent events."""
    while True:
        try:
            document = await jobs.run(data.live)
        except (TapeError, OSError) as error:
            document = {"error": str(error)}
        yield b"data: " + msgspec.json.encode(document) + b"\n\n"
        await asyncio.sleep(LIVE_S)


def _response(body: bytes, media_type: str) -> Response:
    from starlette.responses import Response

    return Response(body, media_type=media_type)


def _refusal(code: int, message: str, error: str = "", hint: str | None = None) -> Response:
    document = {"error": error or http.HTTPStatus(code).phrase, "message": message, "hint": hint}
    from starlette.responses import Response

    return Response(msgspec.json.encode(document), code, media_type="application/json")


async def _on_missing(_: Request, __: Exception) -> Response:
    return _refusal(404, "nothing stands here")


def refusal_of(path: str, error: Exception) -> Response:
    """Return the answer to a request that failed: a known error by name, any other one as our defect."""
    if isinstance(error, MissingPathError):
        return _refusal(404, str(error), type(error).__name__, error.advice)
    if isinstance(error, ConfigError | FormatError):
        return _refusal(422, str(error), type(error).__name__, error.advice)
    if isinstance(error, TapeError):
        return _refusal(409, str(error), type(error).__name__, error.advice)
    if isinstance(error, ValueError):
        return _refusal(400, str(error))
    if isinstance(error, OSError):
        return _refusal(409, error.strerror or str(error), type(error).__name__)
    traceback.print_exception(error, file=sys.stderr)
    return _refusal(500, f"the viewer has a defect: {path}: {error}")
