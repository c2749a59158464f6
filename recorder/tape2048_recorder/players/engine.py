"""Engines: other programs that choose moves, over standard input and output.

The player ``exec:COMMAND`` starts COMMAND and asks it for moves in lines of text. The page
``docs/reference/engines.md`` specifies the protocol::

    recorder   tape2048 1
    engine     engine NAME VERSION batch=N
    recorder   move 1200000000000000 2110000000000000
    engine     LD

A *fault* is a program that ends, does not answer in time, answers with an illegal move, or prints anything
else. Its process is ended, and started again for the next request. The game of the board is forfeited: it is
not recorded. If the request had several boards, each is requested again on its own, so that no other game is
forfeited.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from tape2048.base.settings import Settings, about
from tape2048.base.text import counted, exit_text
from tape2048.errors import ConfigError, PlayerError, StartError
from tape2048_recorder.ipc.parent_death import die_with

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

#: The version of the protocol.
PROTOCOL = 1

#: Most boards that an engine may ask for in one request.
BATCH_MAX = 4096

_MOVES = "UDLR"
_HELLO = re.compile(r"engine (?P<name>[!-~]{1,60}) (?P<version>[!-~]{1,60})(?P<rest>( [a-z_]+=[!-~]*)*)")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NO_MOVE = 255  # in the table of letters

_CLOSE_S = 5.0  # from closing its input to SIGKILL
_LOOK_S = 0.002  # polling interval for the end of a process
_REAP_S = 10.0  # from SIGKILL to the end of a process
_BEAT_S = 1.0  # interval of heartbeats while an engine thinks
_LINE_MAX = 1 << 16  # bytes of a line; an answer has at most BATCH_MAX
_SHOWN = 60  # characters of an engine's output in a message
_LAST_WORDS = 300  # bytes of standard error in a message
_READ_BYTES = 1 << 16

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)

_LETTERS = np.full(256, _NO_MOVE, np.uint8)
_LETTERS[np.frombuffer(_MOVES.encode(), np.uint8)] = range(4)

_PAGE = "See the protocol in docs/reference/engines.md."


class EngineArgs(Settings, frozen=True):
    """Parameters of ``exec``."""

    command: Annotated[str, about("the program and its arguments, as in a shell; `command=` comes last")] = ""
    start_timeout_s: Annotated[
        float, about("longest time from the start of the program to its hello", gt=0, le=86_400)
    ] = 60.0
    move_timeout_s: Annotated[float, about("longest time to answer a request", gt=0, le=86_400)] = 10.0

    def check(self) -> None:
        """Raise ConfigError for a malformed command, or if its program does not exist."""
        words_of(self.command)


def words_of(command: str) -> list[str]:
    """Split a command into the program's path and its arguments; ConfigError if no program is found."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"found the command {command!r}, expected closed quotes ({error})") from error
    if not words:
        raise ConfigError(
            "found an empty command, expected a program",
            hint="Name a program and its arguments: exec:./engine --depth 3.",
        )
    path = shutil.which(words[0])
    if path is None:
        is_file = Path(words[0]).is_file()
        raise ConfigError(
            f"found {words[0]!r}, which is {'not executable' if is_file else 'no file and not on PATH'}; "
            "expected a program",
            hint="Make it executable: chmod +x." if is_file else "Pass its path, or a name on PATH.",
        )
    return [path, *words[1:]]


class _Fault(Exception):  # noqa: N818 - it never leaves this module
    """An engine's failure to answer a request."""


class EnginePlayer:
    """A batched player that asks a program for moves. Call it from one thread at a time.

    ``faults`` has the reason for each board of the last call without an answer, by index. ``alive`` is called
    at least once a second while the engine thinks. Raises ConfigError if the program does not exist, and
    StartError if it does not start or sends no hello line.
    """

    def __init__(self, command: str, start_timeout_s: float, move_timeout_s: float) -> None:
        self._args = command, start_timeout_s, move_timeout_s
        self._words = words_of(command)
        self._start_timeout_s = start_timeout_s
        self._move_timeout_s = move_timeout_s
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = Usage()  # of processes that have ended
        self.faults: dict[int, str] = {}
        self.restarts = -1
        self.alive: Callable[[], object] = lambda: None
        try:
            self._start()
        except _Fault as fault:
            raise StartError(f"the engine {command!r}: {fault}", hint=_PAGE) from None

    def another(self) -> EnginePlayer:
        """Start another process of the same engine, for another thread."""
        return EnginePlayer(*self._args)

    @property
    def lanes(self) -> int:
        """Games to play at once. Half of them make one request."""
        return 1 if self.batch == 1 else 2 * self.batch

    @property
    def sha256(self) -> str:
        """Hash of the command, the files that it names, and the engine's name and version."""
        digest = hashlib.sha256(f"{self._command}\n{self.name}\n".encode())
        for word in self._words:
            if os.path.isfile(word):  # noqa: PTH113 - a word may be no path at all
                with open(word, "rb") as file:  # noqa: PTH123
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def __call__(
        self, boards: npt.NDArray[np.uint64], legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Return the moves; in ``faults``, legal but meaningless.

        PlayerError if the program cannot restart.
        """
        self.faults = {}
        moves = np.zeros(len(boards), np.uint8)
        for first in range(0, len(boards), self.batch):
            self._ask(np.arange(first, min(first + self.batch, len(boards))), legal, exps, moves)
        for index in self.faults:
            mask = int(legal[index])
            moves[index] = (mask & -mask).bit_length() - 1
        return moves

    def _ask(self, at: npt.NDArray[np.int64], legal: Any, exps: Any, moves: npt.NDArray[np.uint8]) -> None:
        lines = np.full((len(at), 17), ord(" "), np.uint8)
        lines[:, 1:] = _HEX[exps[at]]
        try:
            if self._process is None:
                self._start_again()
            found = _moves_in(
                self._converse(b"move" + lines.tobytes() + b"\n", self._move_timeout_s), len(at)
            )
        except _Fault as fault:
            self._end()
            if len(at) == 1:
                self.faults[int(at[0])] = str(fault)
                return
            text = "%s: %s, for a request of %s. Each is requested again on its own"
            logging.getLogger("tape2048").warning(text, self.title, fault, counted(len(at), "board"))
            for one in at:
                self._ask(one[None], legal, exps, moves)
            return
        moves[at] = found
        for index in at[legal[at] >> found & 1 == 0].tolist():
            allowed = "".join(letter for move, letter in enumerate(_MOVES) if legal[index] >> move & 1)
            self.faults[index] = f"it answered {_MOVES[moves[index]]}; expected a legal move: {allowed}"

    @property
    def title(self) -> str:
        return f"{self.name} ({self._command})"

    def _start_again(self) -> None:
        try:
            self._start()
        except _Fault as fault:
            self._end()
            raise PlayerError(f"{self.title} cannot be started again: {fault}", hint=_PAGE) from None

    def _start(self) -> None:
        self.restarts += 1
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=functools.partial(die_with, os.getpid()),  # noqa: PLW1509 - a call of the kernel
            )
        except OSError as error:
            raise _Fault(f"cannot be started: {error.strerror or error}") from error
        self._process = process
        self._kill = weakref.finalize(self, _kill_session, process)
        self._begun = Usage()
        self._said = b""  # on standard error
        self._streams = [_non_blocking(each) for each in (process.stdin, process.stdout, process.stderr)]
        self._poll = select.poll()
        for stream in self._streams[1:]:
            self._poll.register(stream, select.POLLIN)
        try:
            self._read_hello(self._converse(f"tape2048 {PROTOCOL}\n".encode(), self._start_timeout_s))
        except _Fault:
            self._end()
            raise
        self._begun = Usage.of(process.pid)

    def _read_hello(self, line: bytes) -> None:
        match = _HELLO.fullmatch(line.decode("ascii", "replace"))
        if match is None:
            raise _Fault(f"found the hello line {_show(line)}; expected `engine NAME VERSION`")
        options = dict(word.split("=", 1) for word in match["rest"].split())
        batch = options.get("batch", "1")
        if not batch.isdecimal() or not 1 <= int(batch) <= BATCH_MAX:
            raise _Fault(f"found batch={batch} in its hello line; expected 1 to {BATCH_MAX}")
        self.name, self.batch = f"{match['name']} {match['version']}", int(batch)

    def _converse(self, request: bytes, timeout_s: float) -> bytes:
        """Send a line, and return the line that answers it; ``_Fault`` without a valid answer."""
        waited_s = 0.0
        stdin, stdout, stderr = self._streams
        if (early := _read(stdout)) is not None:
            raise _Fault(f"it printed {_show(early)} before a request" if early else self._ending())
        unsent, received = self._write(request), b""
        while b"\n" not in received:
            if waited_s >= timeout_s:
                raise _Fault(f"it did not answer within {timeout_s:g} s{self._last_words()}")
            begin = time.monotonic()
            ready = dict(self._poll.poll(1000 * min(timeout_s - waited_s, _BEAT_S)))
            waited_s += min(time.monotonic() - begin, _BEAT_S)  # not while this process was stopped
            self.alive()
            if stdin in ready:
                unsent = self._write(unsent)
            if stderr in ready:
                self._hear()
            if stdout in ready and (data := _read(stdout)) is not None:
                if not data:
                    raise _Fault(self._ending())
                received += data
            if len(received) > _LINE_MAX:
                raise _Fault(f"it answered {_show(received)}, more than {_LINE_MAX} bytes without a line end")
        line, _, more = received.partition(b"\n")
        if more:
            raise _Fault(f"it answered more than one line: {_show(received)}")
        return line.removesuffix(b"\r")

    def _write(self, data: bytes) -> bytes:
        """Write as much as fits into the pipe, and return the rest."""
        stdin = self._streams[0]
        try:
            rest = data[os.write(stdin, data) :]
        except BlockingIOError:
            rest = data
        except BrokenPipeError:
            raise _Fault(self._ending()) from None
        if rest:
            self._poll.register(stdin, select.POLLOUT)
        elif rest != data:
            with contextlib.suppress(KeyError):
                self._poll.unregister(stdin)
        return rest

    def _hear(self) -> None:
        stderr = self._streams[2]
        while data := _read(stderr):
            self._said = (self._said + data)[-_LAST_WORDS:]
        if data is not None:  # closed
            self._poll.unregister(stderr)

    def _last_words(self) -> str:
        with contextlib.suppress(KeyError):
            self._hear()
        said = self._said.decode("utf-8", "replace").strip()
        return f"; the end of its standard error: {said!r}" if said else ""

    def _ending(self) -> str:
        assert self._process is not None
        status = _await_end(self._process.pid)
        how = "closed its standard output" if status is None else f"ended ({exit_text(status)})"
        return f"it {how}{self._last_words()}"

    @property
    def used(self) -> Usage:
        """The resources of all its processes since their hello lines."""
        if self._process is None:
            return self._ended
        now = Usage.of(self._process.pid)
        cpu_s = self._ended.cpu_s + max(now.cpu_s - self._begun.cpu_s, 0.0)
        self._ended = self._ended._replace(peak_bytes=max(self._ended.peak_bytes, now.peak_bytes))
        return self._ended._replace(cpu_s=cpu_s)

    def _end(self) -> None:
        if self._process is not None:
            self._ended, self._process = self.used, None
            self._kill()

    def close(self) -> None:
        """End the process: close its input, and kill it if it does not end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            _await_end(self._process.pid)
        self._end()


class Usage(NamedTuple):
    """The resources of a process and its descendants; zeros if the system does not report them."""

    cpu_s: float = 0.0
    peak_bytes: int = 0  # sum of the peaks of resident memory of the processes

    @classmethod
    def of(cls, session: int) -> Usage:
        """Return the resources that the processes of a Unix session (an id of ``setsid``) have used."""
        ticks = peak = 0
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))
                    status = (directory / "status").read_text()
                    peak += int(match[1]) if (match := _PEAK.search(status)) else 0
        return cls(ticks / os.sysconf("SC_CLK_TCK"), 1024 * peak)


def _non_blocking(stream: Any) -> int:
    os.set_blocking(stream.fileno(), False)
    number: int = stream.fileno()
    return number


def _read(stream: int) -> bytes | None:
    """Read the available bytes: None if there are none yet, ``b""`` at the end of the stream."""
    try:
        return os.read(stream, _READ_BYTES)
    except BlockingIOError:
        return None


def _await_end(pid: int) -> int | None:
    """Return the exit status, or None if it does not end in time. The process is not reaped."""
    until = time.monotonic() + _CLOSE_S
    while (found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOK_S)
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of a process that leads a session and is not yet reaped, and reap the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def _moves_in(answer: bytes, boards: int) -> npt.NDArray[np.uint8]:
    moves = _LETTERS[np.frombuffer(answer, np.uint8)]
    if len(moves) != boards or (moves == _NO_MOVE).any():
        expected = f"{boards} letters of {_MOVES}" if boards > 1 else f"a letter of {_MOVES}"
        raise _Fault(f"it answered {_show(answer)}; expected {expected}")
    return moves


def _show(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return f"{text[:_SHOWN]!r}{'...' if len(text) > _SHOWN else ''}"
