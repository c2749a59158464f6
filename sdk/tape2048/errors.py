"""The error classes of this project, all below :class:`TapeError`.

A message states the value that was found and the value that was expected. ``path`` and ``offset`` state
where, and ``hint`` or the class's advice states what to do. ``tape2048`` exits with ``exit_code`` when the
error reaches the command line. A class without a code or advice inherits them. A code groups the errors that
a script handles in the same way: 3 something to read is missing, 4 damaged data, 5 inputs that do not fit
together, 6 the target exists, 7 another process is busy, 8 storage, 9 no space, 10 running failed, 11 a
restart would not help, 12 a missing package, 78 a wrong setting. (0 is success, 1 findings, 2 wrong usage.)
``docs/reference/errors.md`` is generated from these classes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from tape2048._version import __version__

_QUOTED_MAX: Final = 500  # maximum length of a message that may quote a file


def masked(text: str) -> str:
    """Replace the users and passwords of the addresses in a text: ``http://user:secret@host``."""
    return re.sub(r"(?<=://)[^\s/@]+@", "***@", text)


class TapeError(Exception):
    """Base class of all errors that this project raises.

    Args:
        message: the value that was found, and the value that was expected.
        path: the file or directory that the error is about.
        offset: byte offset in that file, if known.
        hint: instruction for the user. A traceback prints it below the message.
    """

    exit_code: ClassVar[int] = 1
    _advice: ClassVar[str] = "See docs/how-to/troubleshoot.md."

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = masked(message)
        super().__init__(self.message)
        self.path = None if path is None else masked(str(path))
        self.offset = offset
        self.hint = hint and masked(hint)
        self.add_note(f"hint: {self.advice}")

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{where}{self.message}{at}"

    @property
    def advice(self) -> str:
        """The hint, or the advice for errors of this class."""
        return self.hint or self._advice

    def detach(self) -> Self:
        """Drop the traceback and the causes, and return the error, which then holds text only.

        Their frames would keep the bytes and mappings that were being read, for as long as the error lives.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class ConfigError(TapeError, exit_code=78):  # EX_CONFIG
    """A setting, an option or a condition is wrong: its name, its value, its type, or a combination."""

    _advice = "Correct the setting. `tape2048 config show` and the page of settings list the valid values."


class StorageError(TapeError, exit_code=8):
    """The operating system rejected an operation: no permission, or a file of the wrong kind."""

    _advice = "Check the permissions of the path, and its disk. `tape2048 doctor` checks both."


class MissingPathError(StorageError, exit_code=3):
    """A path to read does not exist."""

    _advice = "Check the spelling of the path, and the working directory (`pwd`)."


class NameTakenError(StorageError, exit_code=6):
    """The target exists already. Nothing was replaced."""

    _advice = "Choose another name, or remove the existing file."


class DiskFullError(StorageError, exit_code=9):
    """No disk space or no quota is left."""

    _advice = "Free some space, raise the quota, or set limits for `tape2048 prune`."


class TooManyFilesError(StorageError):
    """No free file descriptor: the limit of this process (EMFILE) or of the machine (ENFILE) is reached."""

    _advice = "Raise the limit of open files (`ulimit -n`), or open fewer sessions at once."


class StoreError(StorageError):
    """A store of sessions (a directory or a bucket) is unreachable, rejects a request, or is inconsistent."""

    _advice = (
        "Check the store's address, permissions and network. Sessions that were not shipped stay in the "
        "spool."
    )


class FormatError(TapeError, exit_code=4):
    """A file violates its format."""

    def __init__(self, message: str, **where: Any) -> None:
        # A message may quote the file.
        super().__init__(message if len(message) <= _QUOTED_MAX else f"{message[:_QUOTED_MAX]} ...", **where)

    _advice = (
        "The file is damaged, or from another program. Restore a copy, or leave it out. See `tape2048 "
        "validate`."
    )


class NotASessionError(FormatError, exit_code=3):
    """A path has no session, data set or run file."""

    _advice = "Give a session, a data set, a run file, or a directory of them. See `tape2048 list DIR`."


class NpyError(FormatError):
    """A file is not a ``.npy`` file, or has an unexpected header, shape or type of rows."""

    _advice = "Convert the file: `tape2048 convert` reads other layouts of runs."


class TruncatedError(FormatError):
    """A file is shorter than it claims."""

    _advice = "Copy the file again, or write it again: writing or copying was cut short."


class MagicError(FormatError):
    """The first bytes of a file are not the magic of its format."""

    _advice = "Give a file of this format. `tape2048 convert --help` lists the formats."


def reader_hint(release: str | None = None) -> str:
    """Return the hint for a file of a newer format: the release that reads it.

    Args:
        release: the release that wrote the file, if the file names it.

    Example:
        >>> reader_hint("2.1.0")
        'install tape2048 2.1.0 or newer'
    """
    if release and release != __version__:
        return f"install tape2048 {release:.20} or newer"
    return f"install a tape2048 that is newer than {__version__}"


class VersionError(FormatError):
    """A version, byte order or flag that this release cannot read."""

    _advice = reader_hint()


class FieldError(FormatError):
    """A field has an impossible value or encoding, or parts of a file contradict each other."""


class SchemaError(FormatError):
    """``metadata.db`` is not a readable SQLite file, or a table or a column is missing or of a wrong type."""

    _advice = (
        "Restore a copy, or convert the file if another program wrote it. A recorder recovers its own drafts."
    )


class ManifestError(FormatError):
    """``manifest.json`` is malformed, or does not match the files beside it."""

    _advice = "Copy the whole directory again, and validate it before you use it."


class ChecksumError(FormatError):
    """A checksum does not match: bytes have changed since they were written."""

    _advice = (
        "Restore a copy, and check the disk. `tape2048 validate --quarantine` moves damaged sessions aside."
    )


class BookkeepingError(FormatError):
    """The numbers of runs, blocks and rows are inconsistent."""


class ReplayError(FormatError):
    """A game cannot be replayed or played on, its replay differs, or it breaks the rules."""

    _advice = "Use the release and the player of the recording. The message names both if they are known."


class ModelError(FormatError):
    """A network, a critic or a tower is missing, damaged, or does not suit its use."""

    _advice = (
        "Give a file of `tape2048 train-player` or `tape2048 critic train`, or the name of a shipped network."
    )


class ColumnError(FormatError):
    """A column of a session is missing, unfinished, damaged, or belongs to other rows."""

    _advice = (
        "Write the column again: `tape2048 annotate`, `tape2048 critic score` or `tape2048 embed`, with "
        "--force."
    )


class MaintenanceError(TapeError, exit_code=5):
    """Sessions cannot be merged, removed, repacked or converted as requested. Nothing has changed."""

    _advice = "Leave out the session that the message names."


class CorpusError(TapeError, exit_code=5):
    """Sessions cannot be served or evaluated together, or not in the requested way."""

    _advice = "Open sessions that belong together, or change the options that the message names."


class EmptyCorpusError(CorpusError, exit_code=3):
    """No session, run or row is left. After a filter, the message has the numbers before the filter."""

    _advice = "Loosen the filter or the phase, or open other sessions."


class StateError(CorpusError):
    """A saved state of a loader or a training is damaged, or belongs to another corpus or other settings."""

    _advice = (
        "Resume with the corpus, settings and ranks of the saved state, or start again without the state."
    )


class BusyError(TapeError, exit_code=7):
    """Another process is using or changing the directory."""

    _advice = "Wait for the other process, or end it. Nothing was changed."


class RecorderError(TapeError, exit_code=10):
    """The recorder cannot continue, or cannot be controlled."""

    _advice = "Start the recorder again: it recovers the committed rows. The log has the cause."


class NotRunningError(RecorderError, exit_code=3):
    """No recorder is running in this directory under this instance name."""

    _advice = "Check --out and --instance. `tape2048 status` shows the recorders."


class StartError(RecorderError, exit_code=11):
    """A recorder cannot start or cannot record anything, and another start would not help."""

    _advice = "Try the player alone with `tape2048 bench-player`. `tape2048 doctor` checks the machine."


class ShippingError(StartError):
    """A session or a recorder does not fit its store: another lease, other settings, another player."""

    _advice = "Compare the recorder's settings with `recorder.toml` in the store."


class PlayerError(RecorderError):
    """A user's player or model raised an exception, gave invalid scores, or cannot load its weights."""

    _advice = "Correct the player where the message points. `tape2048 bench-player` tests it alone."


class TrainingError(TapeError, exit_code=10):
    """The training of a critic cannot continue."""

    _advice = "Correct the cause that the message names, and resume: the last checkpoint is intact."


class MissingPackageError(TapeError, exit_code=12):
    """A required package is not installed. The hint names the extra that provides it."""

    _advice = "Install the package that the message names, or tape2048 with the extra that has it."


class Skipped(NamedTuple):
    """An input that was left out, and the reason."""

    path: Path
    error: TapeError


def error_class(name: str) -> type[TapeError]:
    """Return the error class with this name; TapeError for an unknown name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TapeError) else TapeError
