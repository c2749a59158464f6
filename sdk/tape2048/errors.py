"""The error classes of this project, all below :class:`TapeError`.

A message says what was found and what was expected; ``path`` and ``offset`` say where; ``hint`` says what to
do. ``exit_code`` is what ``tape2048`` ends with when the error reaches the command line (0 is success, 1
findings, 2 wrong usage): a class without a code of its own has that of the class above it. The README's table
of exit codes is made from these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import os
    from pathlib import Path


class TapeError(Exception):
    """Root of all errors that this project raises on purpose.

    Args:
        message: what was found, and what was expected.
        path: the file or directory it was found in.
        offset: the byte in that file, where one makes sense.
        hint: what the reader can do about it; in a traceback, it stands below the message.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.offset = offset
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{where}{self.message}{at}"


class ConfigError(TapeError):
    """A setting is wrong: its value, its type, or a combination of settings."""

    exit_code = 78  # EX_CONFIG; the service's RestartPreventExitStatus names it


class UnknownKeyError(ConfigError):
    """A setting that does not exist; the message names the nearest one that does."""


class FormatError(TapeError):
    """A file is not what its format says."""

    exit_code = 10


class NotASessionError(FormatError):
    """No session stands at this path: no directory, or one without ``steps.npy`` or ``metadata.db``."""

    exit_code = 11


class NpyHeaderError(FormatError):
    """Not a ``.npy`` file, or one whose header is malformed, not C-ordered or not one-dimensional."""

    exit_code = 12


class NpyDtypeError(FormatError):
    """A ``.npy`` file whose row type is not the one expected."""

    exit_code = 13


class ObjectDtypeError(NpyDtypeError):
    """A ``.npy`` file of pickled objects, which are never loaded."""

    exit_code = 14


class TruncatedError(FormatError):
    """A file with fewer bytes than it claims to have."""

    exit_code = 15


class TrailingBytesError(FormatError):
    """A file with more bytes than it claims to have."""

    exit_code = 16


class NotSqliteError(FormatError):
    """``metadata.db`` is not a SQLite file, or SQLite cannot read it as it stands."""

    exit_code = 17


class SchemaError(FormatError):
    """``metadata.db`` lacks a table or a column, or has a view or a wrong type in its place."""

    exit_code = 18


class ManifestError(FormatError):
    """``manifest.json`` is malformed, or disagrees with the files beside it."""

    exit_code = 19


class ChecksumError(FormatError):
    """Bytes are not the ones that were written."""

    exit_code = 20


class BookkeepingError(FormatError):
    """Runs, blocks and rows do not add up."""

    exit_code = 21


class ReplayError(FormatError):
    """A run cannot be played again from its seed, or comes out differently."""

    exit_code = 22


class MagicError(FormatError):
    """The first bytes are not those of this format."""

    exit_code = 23


class VersionError(FormatError):
    """A version, byte order or flag that this release cannot read."""

    exit_code = 24


class FieldError(FormatError):
    """A field's value is impossible (a move of 7, a name that is not UTF-8), or two fields disagree."""

    exit_code = 25


class EncodingError(FormatError):
    """Bytes that no encoder of the format writes: an over-long varint, an unknown variant."""

    exit_code = 26


class LayoutError(FormatError):
    """Parts of a file overlap, are out of order, or lie outside the region that holds them."""

    exit_code = 27


class CompressionError(FormatError):
    """A compressed entry cannot be unpacked, or unpacks to another length than it claims."""

    exit_code = 28


class RecoveryError(FormatError):
    """Two boards that no single move and spawn explain: they are not consecutive."""

    exit_code = 29


class NetworkError(FormatError):
    """A file of weights that is whole and is not a network that a player can use."""

    exit_code = 70


class EmbeddingsError(FormatError):
    """Embeddings are missing, malformed, or not those of the rows they lie beside."""

    exit_code = 71


class CriticError(FormatError):
    """A directory that holds no critic (or tower), a damaged one, or one that does not fit what it is for."""

    exit_code = 66


class ScoresError(FormatError):
    """A file of a critic's probabilities that is damaged, has no sidecar, or is of other rows."""

    exit_code = 68


class NoRunsError(FormatError):
    """A directory in which no file of a run stands."""

    exit_code = 72


class NotADatasetError(FormatError):
    """No data set stands at this path: no directory, or one without rows or ``metadata.db``."""

    exit_code = 73


class StorageError(TapeError):
    """The operating system refused something that has to work."""

    exit_code = 30


class OutDirError(StorageError):
    """A directory is missing, is not a directory, or cannot be written."""

    exit_code = 31


class DiskFullError(StorageError):
    """No room or no quota left."""

    exit_code = 32


class NameTakenError(StorageError):
    """The target of a publishing rename exists already; nothing was replaced."""

    exit_code = 33


class UpkeepError(TapeError):
    """Sessions cannot be removed, merged or recovered as asked; nothing has changed."""

    exit_code = 34


class HeldError(UpkeepError):
    """Somebody else reads or changes what was to be changed, at this moment."""

    exit_code = 35


class RemoveAllError(UpkeepError):
    """Retention that would leave no session, and nobody has said that this is meant."""

    exit_code = 36


class MergeError(UpkeepError):
    """Sessions that cannot become one: of two players or sampling rates, of others, or with a game twice."""

    exit_code = 37


class RecorderError(TapeError):
    """The recorder cannot go on."""

    exit_code = 40


class AlreadyRunningError(RecorderError):
    """Another recorder holds this directory under the same instance name."""

    exit_code = 41


class WorkerStartError(RecorderError):
    """A worker could not start (a bad player, a failed compilation): trying again would not help."""

    exit_code = 42


class WorkersDiedError(RecorderError):
    """Workers died again and again; the last one's error is in the message."""

    exit_code = 43


class NotRunningError(RecorderError):
    """No recorder is at work in this directory under this instance name."""

    exit_code = 44


class ControlError(RecorderError):
    """A recorder may not be told what to do (it belongs to another user), or has not done it in time."""

    exit_code = 45


class UnitsError(RecorderError):
    """The units of the service cannot be written where they belong, or a file there is not one of ours."""

    exit_code = 46


class PlayerError(RecorderError):
    """A player of the user's own cannot be used, or does not keep to its contract."""

    exit_code = 80


class PlayerImportError(PlayerError):
    """The module or the factory that a player's name names is not there, or fails to import."""

    exit_code = 81


class PlayerRaisedError(PlayerError):
    """A player, or its factory, raised; the message has what and where."""

    exit_code = 82


class PlayerAnswerError(PlayerError):
    """An answer of the wrong shape or type, a score that is no number, or an illegal move."""

    exit_code = 83


class WeightsError(PlayerError):
    """A file of a model's weights that is not whole, or not one that its player can load."""

    exit_code = 84


class ModelDirError(PlayerError):
    """The directory that checkpoints come from is not there, or holds none."""

    exit_code = 85


class InferenceError(PlayerError):
    """The process that computes for all workers has ended, or cannot be reached."""

    exit_code = 86


class CorpusError(TapeError):
    """Sessions cannot be served together, or not in the way that was asked for."""

    exit_code = 50


class EmptyCorpusError(CorpusError):
    """There is no session, no run or no row; where a filter took them all, how many there were before."""

    exit_code = 51


class MixedRowsError(CorpusError):
    """Sessions whose rows (or embeddings) are of different types, which no one batch can hold."""

    exit_code = 52


class FilterError(CorpusError):
    """A condition on runs that SQLite does not take, or that wants more than to read them."""

    exit_code = 53


class RankError(CorpusError):
    """A rank outside its world, or more ranks than there are rows for."""

    exit_code = 54


class LoaderStateError(CorpusError):
    """A loader's state is malformed, or was taken from another corpus or with other settings."""

    exit_code = 55


class RowsGoneError(CorpusError):
    """A session's rows were truncated, replaced or deleted while the corpus was open."""

    exit_code = 56


class MissingPackageError(TapeError):
    """What was asked for needs a package that is not installed; the hint names the extra that has it."""

    exit_code = 60


class TrainingError(TapeError):
    """A training of a critic cannot go on."""

    exit_code = 62


class DivergedError(TrainingError):
    """The loss, or its gradient, is no longer a finite number; the last checkpoint is from before."""

    exit_code = 63


class CheckpointError(TrainingError):
    """A training's checkpoint is damaged, or was made with other settings, rows or ranks."""

    exit_code = 64


class EvaluationError(TapeError):
    """A critic cannot be examined in the way that was asked for: its split has no such part."""

    exit_code = 67


class DeviceError(TapeError):
    """A device that this machine, or this build of PyTorch, does not have."""

    exit_code = 65


class LossError(TapeError):
    """A conversion would lose something that the target cannot hold, and nobody has said that it may."""

    exit_code = 61


class Skipped(NamedTuple):
    """An input that was left out, and why."""

    path: Path
    error: TapeError


def error_class(name: str) -> type[TapeError]:
    """The class that a message of another process, or a report, names; TapeError for a name of none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TapeError) else TapeError
