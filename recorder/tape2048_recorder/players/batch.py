"""The contract of a player that chooses for many boards at once, and how one is loaded.

A player is any callable::

    def player(boards, legal, exps):
        # boards u64[n], legal u8[n] (bit m: move m is legal), exps u8[n, 16]: read-only, and reused
        return moves  # u8[n], 0 up, 1 down, 2 left, 3 right
        return scores  # or f32[n, 4]: the recorder applies legality and [sampling]

made by a factory, which is named ``python:package.module:factory`` or ``python:path/to/file.py:factory``
and called with ``player_args`` by keyword (and, with ``model_dir``, the checkpoint's path as ``model``). It
may also have:

* ``sha256``: text that differs where the choices do, such as a hash of the weights. Without it, the source
  file of the factory is hashed, which cannot see what else it loads.
* ``warm_up(n)``: called once with the most boards of a batch, before the worker says that it is ready.
* ``submit(boards, legal, exps)`` and ``collect()``: begin to compute, and give the answer of the oldest
  batch under way; at most two are. With them, the rules of one half of the lanes run while the model computes
  the other's. The arrays stay as they are until ``collect``, and an answer until the next call.

``n`` is at most half of ``lanes`` (rounded up; with ``inference = "server"``, of all workers together), and
less at a recorder's end.

**What makes games repeatable.** The recorder's part of a game follows from its seed alone. For the same
games with other numbers of lanes or workers, the scores of a board must not depend on the other boards of the
batch, on its place, or on ``n``, to the last bit. Integers and look-ups hold that; a matrix product in
floating point may not, since libraries sum in an order that follows from the shape. Compute in batches of one
fixed shape, and see whether a board's scores move with its place:
:class:`tape2048_recorder.models.torch_player.TorchPlayer` does both.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tape2048.base.text import counted
from tape2048.errors import (
    ConfigError,
    PlayerAnswerError,
    PlayerError,
    PlayerImportError,
    PlayerRaisedError,
    TapeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from tape2048_recorder.players.sampling import Sampling

    Views = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

__all__ = [
    "PREFIX",
    "TOLD_BYTES_MAX",
    "BatchPlayer",
    "Caller",
    "batch_sha256",
    "check_name",
    "is_batched",
    "make_batch_player",
    "place_of",
    "show_board",
    "told_by",
]

PREFIX = "python:"
_NAME = re.compile(r"python:(?P<module>[A-Za-z_][\w.]*|[^:]+\.py):(?P<factory>[A-Za-z_]\w*)")

ArgValue = int | float | str | bool

#: What a player says of itself stands in shared memory where another process computes.
TOLD_BYTES_MAX = 128

#: What code of others may raise to say that it failed. A worker that leaves by sys.exit() would say nothing.
_RAISED = (Exception, SystemExit)


class BatchPlayer(Protocol):
    """What the recorder calls; see the module's docstring for what else it may have."""

    def __call__(
        self,
        boards: npt.NDArray[np.uint64],
        legal: npt.NDArray[np.uint8],
        exps: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Moves ``u8[n]`` or scores ``f32[n, 4]`` for ``n`` boards."""
        ...


def is_batched(name: str) -> bool:
    """Whether a player's name is that of a factory of batched players."""
    return name.startswith(PREFIX)


def check_name(name: str) -> tuple[str, str]:
    """Module (or file) and factory that a name names; nothing is imported.

    Raises:
        ConfigError: it is not of that form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"found player = {name!r}, expected python:package.module:factory or python:path/file.py:factory",
            hint="the factory is called with player_args and returns the player",
        )
    return match["module"], match["factory"]


def make_batch_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Import the factory and call it.

    Raises:
        ConfigError: the name is not of the form.
        PlayerImportError: the module or the factory is not there, or importing it failed.
        PlayerRaisedError: the factory raised.
        PlayerError: what the factory raised of its own (a checkpoint that cannot be read).
    """
    factory = _factory(name)
    try:
        player = factory(**args)
    except PlayerError:
        raise
    except TapeError as error:  # of a factory of ours, in words for whoever called it
        raise PlayerRaisedError(f"{name}: {error}", hint=error.hint) from error
    except _RAISED as error:
        raise PlayerRaisedError(
            f"{name}: the factory raised {_said(error)}; it was called with {dict(args)}",
            hint=_where(error),
        ) from error
    if not callable(player):
        raise PlayerImportError(
            f"{name}: the factory gave a {type(player).__name__}, expected a callable of boards, legal, exps"
        )
    return player


def _factory(name: str) -> Callable[..., Any]:
    module_name, function = check_name(name)
    try:
        module = (
            _from_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
        )
    except TapeError as error:  # the module names the package that it needs
        raise PlayerImportError(f"{name}: {error}", hint=error.hint) from error
    except _RAISED as error:
        missing = isinstance(error, ImportError | FileNotFoundError)
        hint = "install the package, set PYTHONPATH, or name the file: python:path/file.py:factory"
        raise PlayerImportError(
            f"{name}: importing {module_name} failed: {_said(error)}", hint=hint if missing else _where(error)
        ) from error
    factory = getattr(module, function, None)
    if not callable(factory):
        found = "nothing" if factory is None else f"a {type(factory).__name__}"
        raise PlayerImportError(
            f"{name}: found {found} called {function!r} in {module_name}, expected a factory"
        )
    return factory  # type: ignore[no-any-return]


def _from_file(path: str) -> Any:
    """The module of a file, under a name of its own."""
    file = Path(path).resolve()
    name = f"_tape2048_player_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def batch_sha256(
    name: str,
    args: Mapping[str, ArgValue],
    sampling: Sampling,
    player: Any,
    *,
    checkpoint_sha256: str | None = None,
) -> str:
    """What tells this player from any that would choose otherwise, as far as it can be told.

    SHA-256 over the factory's name, its arguments, the sampling, the checkpoint, and the player's ``sha256``
    or else the source file of its factory.
    """
    import msgspec

    facts = {
        "player": name,
        "args": dict(args),
        "sampling": msgspec.to_builtins(sampling),
        "checkpoint": checkpoint_sha256,
        "says": told_by(player, name),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode()).hexdigest()


def told_by(player: Any, name: str) -> str:
    """What a player says of itself: its ``sha256``, or else the SHA-256 of its factory's source file.

    Of a text longer than :data:`TOLD_BYTES_MAX`, the SHA-256.
    """
    told = getattr(player, "sha256", None)
    if not isinstance(told, str):
        return _source_sha256(name)
    said = told.encode("utf-8", "backslashreplace")
    return told if len(said) <= TOLD_BYTES_MAX else hashlib.sha256(said).hexdigest()


def _source_sha256(name: str) -> str:
    module_name, _ = check_name(name)
    path: str | None = module_name
    if not module_name.endswith(".py"):
        path = getattr(sys.modules.get(module_name), "__file__", None)
    if path is None:
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Caller:
    """Asks one player, and holds it to the contract.

    Args:
        player: what the factory gave.
        name: the factory, for messages.
        answered: called when an answer has come.

    Attributes:
        model_ns: nanoseconds spent in the player.
        calls: answers taken.
    """

    def __init__(self, player: Any, name: str, *, answered: Callable[[], None] | None = None) -> None:
        self.name = name
        self.model_ns = 0
        self.calls = 0
        self._player = player
        self._answered = answered
        self._under_way: deque[Views] = deque()
        self._overlaps = callable(getattr(player, "submit", None)) and callable(
            getattr(player, "collect", None)
        )

    def warm_up(self, lanes: int) -> None:
        """Let the player prepare for batches of this many boards."""
        prepare = getattr(self._player, "warm_up", None)
        if callable(prepare):
            self._call("warm_up", None, prepare, lanes)

    def submit(self, views: Views) -> None:
        """Give it a batch: boards, legal masks, exponents."""
        if self._overlaps:
            self._call("submit", views, self._player.submit, *views)
        self._under_way.append(views)

    def collect(self) -> npt.NDArray[Any]:
        """The answer to the oldest batch: ``u8[n]`` or ``f32[n, 4]``, C-contiguous.

        Raises:
            PlayerRaisedError: the player raised.
            PlayerAnswerError: the answer is no array, or one of another shape or type.
        """
        views = self._under_way.popleft()
        if self._overlaps:
            answer = self._call("collect", views, self._player.collect)
        else:
            answer = self._call("the player", views, self._player, *views)
        self.calls += 1
        if self._answered is not None:
            self._answered()
        return self._checked(answer, views)

    def drain(self) -> None:
        """Let what is under way end, and forget its answers."""
        while self._under_way:
            self.collect()

    def _call(self, what: str, views: Views | None, function: Callable[..., Any], *args: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return function(*args)
        except PlayerError:
            raise
        except _RAISED as error:
            batch = (
                ""
                if views is None
                else f" for {counted(len(views[0]), 'board')}, the first of them {show_board(views[0][0])}"
            )
            raise PlayerRaisedError(
                f"{self.name}: {what} raised {_said(error)}{batch}", hint=_where(error)
            ) from error
        finally:
            self.model_ns += time.perf_counter_ns() - begin

    def _checked(self, answer: Any, views: Views) -> npt.NDArray[Any]:
        import numpy as np

        n = len(views[0])
        if isinstance(answer, np.ndarray) and (
            (answer.dtype == np.uint8 and answer.shape == (n,))
            or (answer.dtype == np.float32 and answer.shape == (n, 4))
        ):
            return np.ascontiguousarray(answer)
        found = f"a {type(answer).__name__}"
        if isinstance(answer, np.ndarray):
            found = f"{answer.dtype}{list(answer.shape)}"
        raise PlayerAnswerError(
            f"{self.name}: found {found} for {counted(n, 'board')}, "
            f"the first of them {show_board(views[0][0])}; "
            f"expected moves uint8[{n}] or scores float32[{n}, 4]",
            hint="a NumPy array: tensor.numpy(), array.astype(numpy.float32)",
        )


def place_of(name: str, at: int, views: Views) -> str:
    """Where an answer is bad: factory, place in the batch, board, what is legal."""
    boards, legal, _ = views
    allowed = "".join(letter for move, letter in enumerate("UDLR") if int(legal[at]) >> move & 1)
    return f"{name}: board {at} of {len(boards)}, {show_board(boards[at])}, legal {allowed}"


def show_board(board: Any) -> str:
    """A packed board as hexadecimal and as its rows of exponents."""
    digits = f"{int(board):016x}"
    return f"0x{digits} (rows {' '.join(digits[i : i + 4] for i in range(0, 16, 4))})"


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is of somebody else's making
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where(error: BaseException) -> str:
    """The line that raised, of the frames that are not ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return "raised by the call itself: look at the parameters that it takes"
    return f"raised in {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})"
