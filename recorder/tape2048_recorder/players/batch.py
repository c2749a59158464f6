"""Batched players, which choose moves for many boards at once: contract, loading and calls.

A player is any callable::

    def player(boards, legal, exps):
        # boards u64[n], legal u8[n] (bit m: move m is legal), exps u8[n, 16]: read-only, and reused
        return moves  # u8[n], 0 up, 1 down, 2 left, 3 right
        return scores  # or f32[n, 4]: the recorder applies legality and [sampling]

made by a factory, ``python:package.module:factory`` or ``python:path/to/file.py:factory``
and called with ``player_args`` by keyword (and, with ``model_dir``, the checkpoint's path as ``model``). It
may also have:

* ``sha256``: text that differs where the choices do, such as a hash of the weights. Without it, the source
  file of the factory is hashed, but not the files that it loads.
* ``warm_up(n)``: called once with the largest batch size, before the worker reports that it is ready.
* ``submit(boards, legal, exps)`` and ``collect()``: start a computation, and return the answer of the oldest
  batch in flight; at most two are. With them, the rules of one half of the lanes run while the model computes
  the other's. The arrays do not change until ``collect``, nor may an answer until the next call.

``n`` is at most half of ``lanes`` (rounded up), and
smaller towards the end of a recording.

A callable with a single parameter gets one board at a time, as ``u8[4, 4]``: the exponents of the tiles, row
by row, 0 for an empty cell. It returns a move, or four scores::

    def player(board):
        return 2  # 0 up, 1 down, 2 left, 3 right

**Reproducibility.** The seed alone decides the recorder's part of a game. For the same games with other
numbers of lanes or workers, the scores of a board must not depend on the other boards of the batch, on its
place, or on ``n``, to the last bit. Integers and look-ups satisfy that. A floating-point matrix product may
not, since libraries sum in an order that depends on the shape. Compute in batches of one fixed shape, and
test whether a board's scores change with its place:
:class:`tape2048_recorder.models.torch_player.TorchPlayer` does both.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError, PlayerError, StartError, TapeError
from tape2048.settings.fields import Settings, Share, about, read_table
from tape2048_recorder.players.engine import EXEC, EngineArgs, EnginePlayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    Views = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

PREFIX = "python:"
_NAME = re.compile(r"python:(?P<module>[A-Za-z_][\w.]*|[^:]+\.py):(?P<factory>[A-Za-z_]\w*)")

ArgValue = int | float | str | bool

_FIND_IT = "Check MODULE:FACTORY, and that Python finds the module (PYTHONPATH)."

#: Errors of user code. A worker that left by its sys.exit() would report nothing.
_RAISED = (Exception, SystemExit)

#: Indexed by their numbers in the kernel.
METHODS = ("argmax", "softmax", "top_k", "top_p")

Step = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Sampling(Settings, frozen=True, kw_only=True):
    """The ``[sampling]`` table: how moves are drawn from the scores of a batched player.

    ::

        [sampling]
        method = "softmax"  # argmax, softmax, top_k, top_p
        temperature = 0.5
        start_gate = 0  # the method applies to steps start_gate <= step < stop_gate of a game
        stop_gate = 30  # ... and argmax to the others; 0: to the end
        epsilon = 0.01  # the probability of a uniformly random legal move, within its own gates
        epsilon_start_gate = 0
        epsilon_stop_gate = 0

    ``top_k`` keeps the k legal moves with the highest scores, and ``top_p`` the fewest whose probabilities
    sum to p (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020); both then draw by
    softmax. Of equal scores, the move with the lower number comes first. Every draw is from the game's own
    generator: one for a method that draws, a further number if epsilon applies (two if it replaces the move),
    none for argmax. The games do not depend on the number of lanes or workers, as long as the scores do not.
    """

    method: Annotated[str, about("how a move is chosen", choices=METHODS)] = "argmax"
    temperature: Annotated[float, about("divisor of scores before the softmax", gt=0, le=1e9)] = 1.0
    top_k: Annotated[int, about("number of moves that top_k keeps", ge=1, le=4)] = 2
    top_p: Annotated[float, about("least probability that top_p keeps", gt=0, le=1)] = 0.9
    start_gate: Annotated[Step, about("first step of a game with the method; argmax before")] = 0
    stop_gate: Annotated[Step, about("first step without it; 0: none")] = 0
    epsilon: Annotated[Share, about("probability of a random legal move")] = 0.0
    epsilon_start_gate: Annotated[Step, about("first step with epsilon")] = 0
    epsilon_stop_gate: Annotated[Step, about("first step without it; 0: none")] = 0

    @property
    def needs_scores(self) -> bool:
        """Whether the method draws from scores, so that a player must not answer with moves."""
        return self.method != "argmax"

    def check(self) -> None:
        """Raise ConfigError for gates that leave no step."""
        for prefix in ("", "epsilon_"):
            start, stop = getattr(self, f"{prefix}start_gate"), getattr(self, f"{prefix}stop_gate")
            if stop and stop <= start:
                raise ConfigError(
                    f"sampling: found {prefix}start_gate = {start}, {prefix}stop_gate = {stop}, "
                    "expected a stop above the start (or 0: to the end of the game)"
                )


def read_sampling(table: Mapping[str, object]) -> Sampling:
    """Read a ``[sampling]`` table; ConfigError for an unknown setting, an invalid value, or no step."""
    return read_table(Sampling, dict(table), "sampling")


class BatchPlayer(Protocol):
    """A batched player. The module's docstring lists its optional methods."""

    def __call__(
        self, boards: npt.NDArray[np.uint64], legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Return moves ``u8[n]`` or scores ``f32[n, 4]`` for ``n`` boards."""


def is_batched(name: str) -> bool:
    """Whether a name is that of a factory of batched players, or of an engine."""
    return name.startswith(PREFIX) or name == EXEC


def check_name(name: str) -> tuple[str, str]:
    """Split a name into module (or file) and factory, without importing; ConfigError for another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"found player = {name!r}, expected python:package.module:factory or python:path/file.py:factory",
            hint="the factory is called with player_args and returns the player",
        )
    return match["module"], match["factory"]


def make_batch_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Import the factory and call it, or start the engine.

    Raises:
        ConfigError: the name has another form, or the engine's program does not exist.
        StartError: the module or the factory does not exist, or its import failed; an engine does not start.
        PlayerError: the factory raised (a checkpoint that cannot be read).
    """
    if name == EXEC:
        return EnginePlayer(**msgspec.structs.asdict(read_table(EngineArgs, dict(args), f"player {name!r}")))
    module_name, function = check_name(name)
    load = _from_file if module_name.endswith(".py") else importlib.import_module
    with _raised_as(StartError, name, f"importing {module_name} failed:"):
        module = load(module_name)
    factory = getattr(module, function, None)
    if not callable(factory):
        found = "nothing" if factory is None else f"a {type(factory).__name__}"
        raise StartError(
            f"{name}: found {found} called {function!r} in {module_name}, expected a factory", hint=_FIND_IT
        )
    with _raised_as(PlayerError, name, "the factory raised", f". It was called with {dict(args)}"):
        player = factory(**args)
    if not callable(player):
        raise StartError(
            f"{name}: the factory returned a {type(player).__name__}, "
            "expected a callable of boards, legal, exps",
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
    """A batched player that asks a function about one board after the other.

    Args:
        choose: takes a board, ``u8[4, 4]`` exponents, and returns a move (0 up, 1 down, 2 left, 3 right) or
            four scores.
        name: what errors call it.

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
        """Return the moves, ``u8[n]``, or the scores, ``f32[n, 4]``, of all boards.

        Raises:
            PlayerError: an answer is neither a move nor four numbers.
        """
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
            "expected a move, 0 to 3, or four scores",
            hint="0 is up, 1 down, 2 left, 3 right",
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
            hint = "install the package, set PYTHONPATH, or name the file: python:path/file.py:factory"
        raise kind(f"{name}: {before} {_describe(error)}{after}", hint=hint) from error


def _from_file(path: str) -> Any:
    file = Path(path).resolve()
    name = f"_tape2048_player_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
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
    """Return the identity of a player: it differs where the moves do, as far as that can be known.

    SHA-256 over the factory's name, its arguments, the sampling, the checkpoint, and the player's ``sha256``;
    without that, over the factory's source file.
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
    """Calls one player, and checks that it keeps the contract.

    ``answered`` is called after each answer, and once a second while an engine thinks.
    """

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
        """Return the answer to the oldest batch: ``u8[n]`` or ``f32[n, 4]``, C-contiguous.

        Raises:
            PlayerError: the player raised, or its answer is not an array of the right shape and type.
        """
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
        """The reasons for boards of the last batch that an engine did not answer, by index."""
        return self._player.faults if isinstance(self._player, EnginePlayer) else {}

    def lanes(self, lanes: int) -> int:
        """Return the number of lanes to use: at most ``lanes``, and as many as an engine takes."""
        return min(lanes, self._player.lanes) if isinstance(self._player, EnginePlayer) else lanes

    def close(self) -> None:
        """End the process of an engine."""
        if isinstance(self._player, EnginePlayer):
            self._player.close()

    def drain(self) -> None:
        """Collect the answers in flight, and discard them."""
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
            hint="a NumPy array: tensor.numpy(), array.astype(numpy.float32)",
        )


def describe_place(name: str, at: int, views: Views) -> str:
    """Describe a board of a batch: factory, place, board, legal moves."""
    boards, legal, _ = views
    allowed = "".join(letter for move, letter in enumerate("UDLR") if int(legal[at]) >> move & 1)
    return f"{name}: board {at} of {len(boards)}, {show_board(boards[at])}, legal {allowed}"


def show_board(board: Any) -> str:
    """Format a packed board as hexadecimal and as its rows of exponents."""
    digits = f"{int(board):016x}"
    return f"0x{digits} (rows {' '.join(digits[i : i + 4] for i in range(0, 16, 4))})"


def _describe_batch(views: Views) -> str:
    return f"{counted(len(views[0]), 'board')}, the first of them {show_board(views[0][0])}"


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _raising_line(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return "raised by the call itself: look at the parameters that it takes"
    return f"raised in {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})"
