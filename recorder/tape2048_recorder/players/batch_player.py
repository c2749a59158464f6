"""Batched players: callables that choose moves for many boards at once.

A player is any callable::

    def player(boards, legal, exps):
        # boards u64[n], legal u8[n] (bit m: move m is legal), exps u8[n, 16]: read-only, and reused
        return moves  # u8[n], 0 up, 1 down, 2 left, 3 right
        return scores  # or f32[n, 4]: the recorder applies legality and [sampling]

``n`` is at most half of ``lanes`` (rounded up), and smaller towards the end of a recording.

A factory returns the player. Name it as ``python:package.module:factory`` or
``python:path/to/file.py:factory``. It is called with ``player_args`` by keyword. With ``model_dir``, it also
gets the checkpoint's path as ``model``.

A player can also have:

* ``sha256``: text that changes when the choices can change, such as a hash of the weights. Without it, the
  source file of the factory is hashed, but not the files that it loads.
* ``warm_up(n)``: called once with the largest batch size, before the worker reports that it is ready.
* ``submit(boards, legal, exps)`` and ``collect()``: ``submit`` starts a computation, and ``collect`` returns
  the answer to the oldest batch. At most two batches are in flight. The recorder then applies the rules to
  half of the games while the model computes moves for the other half. The arrays stay unchanged until
  ``collect``. An answer must stay unchanged until the next call.

A callable with a single parameter gets one board at a time, as ``u8[4, 4]``: the exponents of the tiles, row
by row, 0 for an empty cell. It returns a move, or four scores::

    def player(board):
        return 2  # 0 up, 1 down, 2 left, 3 right

**Reproducibility.** The seed determines everything in a game except the player's answers. If the games must
be the same with any number of lanes and workers, the scores of a board must not depend on the other boards of
the batch, on its place in the batch, or on ``n``, to the last bit. Integers and look-ups satisfy that. A
floating-point matrix product may not, because libraries sum in an order that depends on the shape. Compute in
batches of one fixed shape, and test whether a board's scores change with its place.
:class:`tape2048_recorder.models.torch_player.TorchPlayer` does both.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import PlayerError, StartError, TapeError
from tape2048_recorder.players.engine import EnginePlayer
from tape2048_recorder.players.options import EXEC, ArgValue, check_name, check_player

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from tape2048_recorder.players.sampling import Sampling

    Views = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

_FIND_IT = "Check MODULE:FACTORY, and that Python finds the module (PYTHONPATH)."

#: Errors of user code, sys.exit() included: it would end the worker without a report.
_RAISED = (Exception, SystemExit)


class BatchPlayer(Protocol):
    """A batched player. The module's docstring lists its optional methods."""

    def __call__(
        self, boards: npt.NDArray[np.uint64], legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Return moves ``u8[n]`` or scores ``f32[n, 4]`` for ``n`` boards."""


def make_batch_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Import and call the factory, or start the engine; ConfigError, StartError or PlayerError."""
    if name == EXEC:
        checked: dict[str, Any] = check_player(name, args)
        return EnginePlayer(**checked)
    module_name, function = check_name(name)
    load = _from_file if module_name.endswith(".py") else importlib.import_module
    with _raised_as(StartError, name, f"importing {module_name} failed:"):
        module = load(module_name)
    factory = getattr(module, function, None)
    if not callable(factory):
        found = "nothing" if factory is None else f"a {type(factory).__name__}"
        raise StartError(
            f"{name}: found {found} named {function!r} in {module_name}, expected a factory", hint=_FIND_IT
        )
    with _raised_as(PlayerError, name, "the factory raised", f". It was called with {dict(args)}"):
        player = factory(**args)
    if not callable(player):
        raise StartError(
            f"{name}: the factory returned a {type(player).__name__}; "
            "expected a callable with the parameters boards, legal, exps",
            hint=_FIND_IT,
        )
    return OneBoard(player, name) if _takes_one_board(player) else player


def _takes_one_board(player: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(player).parameters.values()
    except ValueError:  # compiled, without a signature
        return False
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each.kind in positional for each in parameters if each.default is each.empty] == [True]


class OneBoard:
    """A batched player that calls a function for one board after another.

    Args:
        choose: a function of a board, ``u8[4, 4]`` exponents, that returns a move (0 up, 1 down, 2 left,
            3 right) or four scores.
        name: the name in error messages.

    Example:
        >>> player = OneBoard(lambda board: [0, 0, board.max(), 0])
        >>> player(None, None, np.full((2, 16), 3, np.uint8)).tolist()
        [[0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 3.0, 0.0]]
    """

    def __init__(self, choose: Callable[[npt.NDArray[np.uint8]], Any], name: str = "the player") -> None:
        self._choose = choose
        self._name = name
        self.sha256 = getattr(choose, "sha256", None)

    def __call__(self, _boards: Any, _legal: Any, exps: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return moves ``u8[n]`` or scores ``f32[n, 4]``; PlayerError for any other answer."""
        return np.stack([self._answer(board) for board in exps.reshape(-1, 4, 4)])

    def _answer(self, board: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        answer = self._choose(board)
        found = np.asarray(answer)
        if found.shape == () and found.dtype.kind in "iu" and 0 <= found <= 3:
            return found.astype(np.uint8)
        if found.shape == (4,) and found.dtype.kind in "iuf":
            return found.astype(np.float32)
        raise PlayerError(
            f"{self._name}: found {answer!r:.80} for the board {board.tolist()}; "
            "expected a move from 0 to 3, or four scores",
            hint="Return 0 for up, 1 for down, 2 for left, 3 for right.",
        )


@contextlib.contextmanager
def _raised_as(kind: type[TapeError], name: str, before: str, after: str = "") -> Iterator[None]:
    try:
        yield
    except PlayerError:
        raise
    except TapeError as error:  # of this package, with its own message
        raise kind(f"{name}: {error}", hint=error.hint) from error
    except _RAISED as error:
        hint = _raising_line(error)
        if kind is StartError and isinstance(error, ImportError | FileNotFoundError):
            hint = "Install the package, set PYTHONPATH, or name a file: python:path/file.py:factory."
        raise kind(f"{name}: {before} {_describe(error)}{after}", hint=hint) from error


def _from_file(path: str) -> Any:
    file = Path(path).resolve()
    name = f"_tape2048_player_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle need it there
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
    """Return the SHA-256 (hex) that identifies a batched player in sessions.

    It covers the factory's name, its arguments, the sampling, the checkpoint, and the player's ``sha256``, or
    the factory's source file if the player has no ``sha256``.
    """
    declared = getattr(player, "sha256", None)
    if not isinstance(declared, str):
        path: str | None = check_name(name)[0]
        if not str(path).endswith(".py"):
            path = getattr(sys.modules.get(str(path)), "__file__", None)
        declared = "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    facts = json.dumps(
        {
            "player": name,
            "args": dict(args),
            "sampling": msgspec.to_builtins(sampling),
            "checkpoint": checkpoint_sha256,
            "says": declared,
        },
        sort_keys=True,
        allow_nan=False,
    )
    return hashlib.sha256(facts.encode()).hexdigest()


class Caller:
    """The checked calls of a player; ``answered`` runs after answers, and every second of thinking."""

    def __init__(self, player: Any, name: str, *, answered: Callable[[], None] | None = None) -> None:
        self.name = name
        if isinstance(player, EnginePlayer):
            self.name = player.title
            player.alive = answered or player.alive
        self.model_ns = 0  # time spent in the player
        self.calls = 0  # number of answers
        self._player = player
        self._answered = answered
        self._in_flight: deque[Views] = deque()
        self._overlaps = all(callable(getattr(player, method, None)) for method in ("submit", "collect"))

    def warm_up(self, lanes: int) -> None:
        """Let the player prepare for batches of up to ``lanes`` boards."""
        prepare = getattr(self._player, "warm_up", None)
        if callable(prepare):
            self._call("warm_up", None, prepare, lanes)

    def submit(self, views: Views) -> None:
        """Submit a batch: boards, legal masks, exponents."""
        if self._overlaps:
            self._call("submit", views, self._player.submit, *views)
        self._in_flight.append(views)

    def collect(self) -> npt.NDArray[Any]:
        """Return the oldest batch's answer, C-contiguous; PlayerError for an error or a wrong shape."""
        views = self._in_flight.popleft()
        if self._overlaps:
            answer = self._call("collect", views, self._player.collect)
        else:
            answer = self._call("the player", views, self._player, *views)
        self.calls += 1
        if self._answered is not None:
            self._answered()
        return self._checked(answer, views)

    @property
    def faults(self) -> dict[int, str]:
        """The reason for each board of the last batch that an engine failed to answer, by index."""
        return self._player.faults if isinstance(self._player, EnginePlayer) else {}

    def lanes(self, lanes: int) -> int:
        """Return the number of lanes to use: ``lanes``, or fewer if an engine takes fewer."""
        return min(lanes, self._player.lanes) if isinstance(self._player, EnginePlayer) else lanes

    def close(self) -> None:
        if isinstance(self._player, EnginePlayer):
            self._player.close()

    def drain(self) -> None:
        while self._in_flight:
            self.collect()

    def _call(self, what: str, views: Views | None, function: Callable[..., Any], *args: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return function(*args)
        except PlayerError:
            raise
        except _RAISED as error:
            batch = "" if views is None else f" for {_describe_batch(views)}"
            raise PlayerError(
                f"{self.name}: {what} raised {_describe(error)}{batch}", hint=_raising_line(error)
            ) from error
        finally:
            self.model_ns += time.perf_counter_ns() - begin

    def _checked(self, answer: Any, views: Views) -> npt.NDArray[Any]:
        n = len(views[0])
        if isinstance(answer, np.ndarray) and (
            (answer.dtype == np.uint8 and answer.shape == (n,))
            or (answer.dtype == np.float32 and answer.shape == (n, 4))
        ):
            return np.ascontiguousarray(answer)
        found = f"a {type(answer).__name__}"
        if isinstance(answer, np.ndarray):
            found = f"{answer.dtype}{list(answer.shape)}"
        raise PlayerError(
            f"{self.name}: found {found} for {_describe_batch(views)}; "
            f"expected moves uint8[{n}] or scores float32[{n}, 4]",
            hint="Return a NumPy array of that type: tensor.numpy(), array.astype(numpy.float32).",
        )


def describe_path(name: str, at: int, views: Views) -> str:
    """Describe a board of a batch for an error: player, index, board, legal moves."""
    boards, legal, _ = views
    allowed = "".join(letter for move, letter in enumerate("UDLR") if int(legal[at]) >> move & 1)
    return f"{name}: board {at} of {len(boards)}, {show_board(boards[at])}, legal {allowed}"


def show_board(board: Any) -> str:
    digits = f"{int(board):016x}"
    return f"0x{digits} (rows {' '.join(digits[i : i + 4] for i in range(0, 16, 4))})"


def _describe_batch(views: Views) -> str:
    return f"{counted(len(views[0]), 'board')}, the first is {show_board(views[0][0])}"


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _raising_line(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return "Check the parameters: the call itself raised it."
    return f"See {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name}), which raised it."
