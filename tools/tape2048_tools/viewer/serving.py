"""The server of the viewer: a socket, the printed link, and an end at once on Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tape2048.errors import ConfigError, MissingPackageError, TapeError
from tape2048_tools.viewer.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape2048_tools.viewer.data import Data

#: Where a viewer listens unless told.
HOST, PORT = "127.0.0.1", 2048

#: Seconds between two looks whether all sessions are read.
_READING_S = 0.2

#: Seconds after which a thread gives up the interpreter to another one: an answer takes many short turns, and
#: computations would make each of them wait for Python's 5 ms.
_TURN_S = 0.0005

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def require_server() -> Any:
    """Return uvicorn.

    Raises:
        MissingPackageError: it or starlette is not installed.
    """
    try:
        import starlette  # noqa: F401 - a clear message before anything is read
        import uvicorn
    except ImportError as error:
        raise MissingPackageError(
            f"the viewer needs starlette and uvicorn ({error})", hint="pip install 'tape2048[view]'"
        ) from error
    return uvicorn


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
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
    data: Data,
    host: str,
    port: int,
    *,
    allowed: Sequence[str] = (),
    started: Callable[[str], object],
) -> None:
    """Serve the viewer until the process is interrupted.

    Args:
        data: what the pages show.
        host: the address.
        port: 0: a free one.
        allowed: further host names under which it may be asked.
        started: called with the link as soon as it answers.

    Raises:
        MissingPackageError: starlette or uvicorn is not installed.
        ConfigError: as :func:`listen`.
    """
    uvicorn = require_server()
    listening = listen(host, port)
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
    server = uvicorn.Server(config)
    wildcard = host in {"0.0.0.0", "::"}  # noqa: S104 - only where the user asks for it
    link = f"http://{'127.0.0.1' if wildcard else named}:{port}/?token={token}"
    sys.setswitchinterval(_TURN_S)
    threading.Thread(target=_prepare, args=(data,), daemon=True).start()
    started(link)  # the socket listens: a browser that is faster than the server waits for it
    with listening:
        server.run(sockets=[listening])


def _prepare(data: Data) -> None:
    """Read the sessions, and then one game, so that the first one that is asked for waits for no loading."""
    while data.collection.games().waiting:
        time.sleep(_READING_S)
    with contextlib.suppress(TapeError, OSError):  # the request that needs it says so
        data.warm_up()
