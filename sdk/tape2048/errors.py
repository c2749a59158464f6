"""The error classes of this project, all below :class:`TapeError`.

A message states what was found and what was expected; ``path`` and ``offset`` state where, ``hint`` or
the advice of the class what to do. ``tape2048`` exits with ``exit_code`` when the error reaches the command
line (0 is success, 1 findings, 2 wrong usage); a class without a code or advice of its own inherits them.
``docs/reference/errors.md`` is made from these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import Self


class TapeError(Exception):
    """Base class of all errors that this project raises.

    Args:
        message: what was found, and what was expected.
        path: the file or directory that the error is about.
        offset: byte offset in that file, where there is one.
        hint: what the user can do about it; a traceback prints it below the message.
    """

    exit_code: ClassVar[int] = 1
    _advice: ClassVar[str] = "look it up in docs/how-to/troubleshoot.md"

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
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.offset = offset
        self.hint = hint
        self.add_note(f"hint: {self.advice}")

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{where}{self.message}{at}"

    @property
    def advice(self) -> str:
        """What to do about it: the hint, or else what helps with errors of this class."""
        return self.hint or self._advice

    def detach(self) -> Self:
        """Drop the traceback and the causes, and return the error, which is then text alone.

        Their frames hold the bytes and mappings that were being read, for as long as the error is kept.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class ConfigError(TapeError, exit_code=78):  # EX_CONFIG; the service's RestartPreventExitStatus names it
    """A setting is wrong: its value, its type, or a combination of settings."""

    _advice = "correct the setting: `tape2048 config show` and the page of settings say what each takes"


class UnknownKeyError(ConfigError):
    """A setting does not exist; the message names the nearest one that does."""

    _advice = "remove or rename it; `tape2048 config show` prints all settings"


class FormatError(TapeError, exit_code=10):
    """A file violates its format."""

    _advice = "damaged, or another program's: restore a copy or leave it out; see `tape2048 validate`"


class NotASessionError(FormatError, exit_code=11):
    """No session at this path: a file, or a directory without rows or ``metadata.db``."""

    _advice = "name a session, or the directory that has them; `tape2048 list DIR` shows what is there"


class NpyHeaderError(FormatError, exit_code=12):
    """Not a ``.npy`` file, or its header is malformed, not C-ordered or not one-dimensional."""


class NpyDtypeError(FormatError, exit_code=13):
    """A ``.npy`` file has rows of an unexpected type."""

    _advice = "convert it: `tape2048 convert` reads other layouts of runs"


class ObjectDtypeError(NpyDtypeError, exit_code=14):
    """A ``.npy`` file holds pickled objects, which are never loaded."""


class TruncatedError(FormatError, exit_code=15):
    """A file is shorter than it claims."""

    _advice = "its writing or copying was cut short: copy it again, or make it again"


class TrailingBytesError(FormatError, exit_code=16):
    """A file is longer than it claims."""


class NotSqliteError(FormatError, exit_code=17):
    """``metadata.db`` is not an SQLite file, or SQLite cannot read it in its present state."""

    _advice = "restore a copy; a recorder's own draft is recovered by its next start"


class SchemaError(FormatError, exit_code=18):
    """``metadata.db`` lacks a table or a column, or has a view or a wrong type in its place."""

    _advice = "convert it if another program wrote it; if another release did, read it with that"


class ManifestError(FormatError, exit_code=19):
    """``manifest.json`` is malformed, or disagrees with the files beside it."""

    _advice = "copy the whole directory again; validate it before you use it"


class ChecksumError(FormatError, exit_code=20):
    """A checksum does not match: bytes have changed since they were written."""

    _advice = "restore a copy and check the disk; `tape2048 validate --quarantine` puts damaged sessions away"


class BookkeepingError(FormatError, exit_code=21):
    """The numbers of runs, blocks and rows are inconsistent."""


class ReplayError(FormatError, exit_code=22):
    """A game cannot be replayed from its seed or played on, or the replay differs."""

    _advice = "use the release and the player that recorded it; the message names both where they are known"


class MagicError(FormatError, exit_code=23):
    """The first bytes are not the magic of this format."""

    _advice = "name a file of this format; `tape2048 convert --help` lists the formats"


class VersionError(FormatError, exit_code=24):
    """A version, byte order or flag that this release cannot read."""

    _advice = "read it with a release that knows this version: upgrade tape2048"


class FieldError(FormatError, exit_code=25):
    """A field has an impossible value (a move of 7, a name that is not UTF-8), or two fields disagree."""


class EncodingError(FormatError, exit_code=26):
    """Bytes that no encoder of the format writes: an over-long varint, an unknown variant."""


class LayoutError(FormatError, exit_code=27):
    """Parts of a file overlap, are out of order, or lie outside the region that holds them."""


class CompressionError(FormatError, exit_code=28):
    """A compressed entry cannot be decompressed, or has another length than it claims."""


class RecoveryError(FormatError, exit_code=29):
    """Two boards are not consecutive: no single move and spawn leads from one to the next."""

    _advice = "record with every row (no sampling) what is to be replayed or converted"


class GameError(FormatError, exit_code=74):
    """A tape has a step that the rules do not allow, or a game that does not stop at its end."""


class NetworkError(FormatError, exit_code=70):
    """A file of weights is intact, but holds no network that a player can use."""

    _advice = "name a file that `tape2048 train-player` wrote, or a network that ships"


class EmbeddingsError(FormatError, exit_code=71):
    """Embeddings are missing or malformed, or belong to other rows."""

    _advice = "make them again: `tape2048 embed --force`"


class CriticError(FormatError, exit_code=66):
    """A directory holds no critic (or tower), a damaged one, or one that does not fit its use."""

    _advice = "name what `tape2048 critic train` wrote, and give it what it was trained on"


class ScoresError(FormatError, exit_code=68):
    """A file of a critic's probabilities is damaged, lacks its sidecar, or belongs to other rows."""

    _advice = "make them again: `tape2048 critic score`"


class NoRunsError(FormatError, exit_code=72):
    """A directory contains no run file."""

    _advice = "name a directory with run files, or the files"


class NotADatasetError(FormatError, exit_code=73):
    """No data set at this path: a file, or a directory without rows or ``metadata.db``."""

    _advice = "name a directory or pack.dat that `tape2048 dataset` wrote"


class StorageError(TapeError, exit_code=30):
    """The operating system refused an operation that has to work."""

    _advice = "look at the path's permissions and its disk; `tape2048 doctor` checks both"


class OutDirError(StorageError, exit_code=31):
    """A directory to write to is missing, is not a directory, or is not writable; or one cannot be listed."""

    _advice = "make the directory, or name another; it has to be writable"


class DiskFullError(StorageError, exit_code=32):
    """No space or no quota left."""

    _advice = "free some space, lower the quota's use, or let `tape2048 prune` keep a limit"


class NameTakenError(StorageError, exit_code=33):
    """The target of a publishing rename exists already; nothing was replaced."""

    _advice = "choose another name, or remove what is there"


class MissingPathError(StorageError, exit_code=38):
    """Nothing stands at a path that was named to be read."""

    _advice = "look at the spelling of the path, and where you are (`pwd`)"


class TooManyFilesError(StorageError, exit_code=39):
    """No free file descriptor: the limit of this process (EMFILE) or of the machine (ENFILE) is reached."""

    _advice = "raise the limit of open files (`ulimit -n`), or open fewer sessions at once"


class ForeignFileError(StorageError, exit_code=77):
    """A link, a pipe or another user's file stands in place of a recorder's file; it was left as it is."""

    _advice = "look at it, and remove it if nobody needs it"


class StoreError(StorageError, exit_code=49):
    """A store of sessions (a directory or a bucket) refuses, does not answer, or contradicts itself."""

    _advice = "look at the store's address, rights and network; what is not shipped stays in the spool"


class UpkeepError(TapeError, exit_code=34):
    """Sessions cannot be removed, merged or recovered as requested; nothing has changed."""

    _advice = "the message names the session that stands in the way"


class HeldError(UpkeepError, exit_code=35):
    """Another process is reading or changing what was to be changed."""

    _advice = "wait for the other process, or end it; nothing has changed"


class RemoveAllError(UpkeepError, exit_code=36):
    """Retention would leave no session, and this was not confirmed."""

    _advice = "loosen a limit, or confirm it with --yes-really"


class MergeError(UpkeepError, exit_code=37):
    """Sessions cannot be merged: two players or sampling rates, foreign sessions, or a duplicate game."""

    _advice = "merge sessions of one player and one sampling rate; leave the named one out"


class RepackError(UpkeepError, exit_code=48):
    """A session cannot be written in the other storage: foreign, sampled, or without what a tape has."""

    _advice = "keep it in its storage; only a full session of this recorder can change it"


class RecorderError(TapeError, exit_code=40):
    """The recorder cannot continue."""

    _advice = "start it again: what was confirmed is recovered; the log above has the cause"


class AlreadyRunningError(RecorderError, exit_code=41):
    """Another recorder has locked this directory under the same instance name."""

    _advice = "stop the other recorder, or give this one another --instance or --out-dir"


class WorkerStartError(RecorderError, exit_code=42):
    """A worker could not start (a bad player, a failed compilation), and a retry would not help."""

    _advice = "try the player alone: `tape2048 bench-player`; `tape2048 doctor` checks the machine"


class WorkersDiedError(RecorderError, exit_code=43):
    """Workers died repeatedly; the message has the last one's error."""

    _advice = "read the last worker's error above; memory and a player's own code are usual causes"


class NotRunningError(RecorderError, exit_code=44):
    """No recorder is running in this directory under this instance name."""

    _advice = "look at --out-dir and --instance; `tape2048 status` shows what runs"


class ControlError(RecorderError, exit_code=45):
    """A recorder belongs to another user and cannot be controlled, or did not obey in time."""

    _advice = "ask as the user who started it; `tape2048 status` shows what it does"


class UnitsError(RecorderError, exit_code=46):
    """The service's unit files cannot be written, or would replace files that this project did not write."""

    _advice = "write to another directory, or remove the files that stand in the way"


class NothingRecordedError(RecorderError, exit_code=47):
    """A recorder met a limit before any game had ended."""

    _advice = "raise the limit: a strong player's game takes seconds"


class FleetError(RecorderError, exit_code=57):
    """A node does not fit its fleet (other games or spool, a lease held twice), or nodes are too few."""

    _advice = "compare the node's settings with the fleet's plan; `tape2048 fleet status` shows all nodes"


class PlayerError(RecorderError, exit_code=80):
    """A user-defined player cannot be used, or breaks its contract."""

    _advice = "try it alone: `tape2048 bench-player`"


class PlayerImportError(PlayerError, exit_code=81):
    """A player's module or factory does not exist, or fails to import."""

    _advice = "look at MODULE:FACTORY, and that Python finds the module (PYTHONPATH)"


class PlayerRaisedError(PlayerError, exit_code=82):
    """A player or its factory raised an exception; the message has the exception and its place."""

    _advice = "correct the player where the message points; `tape2048 bench-player` tries it alone"


class PlayerAnswerError(PlayerError, exit_code=83):
    """A player's answer has the wrong shape or type, a score that is not a number, or an illegal move."""

    _advice = "return float32 scores of shape (boards, 4), finite for the legal moves"


class WeightsError(PlayerError, exit_code=84):
    """A file of a model's weights is incomplete, or its player cannot load it."""

    _advice = "write checkpoints to another name and rename them when they are whole"


class ModelDirError(PlayerError, exit_code=85):
    """The directory of checkpoints does not exist, or holds none."""

    _advice = "write a first checkpoint there, or name the directory that has them"


class InferenceError(PlayerError, exit_code=86):
    """The inference process has ended, or cannot be reached."""

    _advice = "read the error above it; `tape2048 doctor` checks memory and devices"


class CorpusError(TapeError, exit_code=50):
    """Sessions cannot be served together, or not in the requested way."""

    _advice = "open sessions that belong together, or change the options that the message names"


class EmptyCorpusError(CorpusError, exit_code=51):
    """No session, no run or no row is left; after a filter, the message has the numbers before it."""

    _advice = "loosen the filter or the phase, or name other sessions"


class MixedRowsError(CorpusError, exit_code=52):
    """Sessions have embeddings of different towers or widths, which cannot share a batch."""

    _advice = "embed all sessions with one tower, or open those of one"


class FilterError(CorpusError, exit_code=53):
    """SQLite rejects a condition on runs, or the condition would do more than read them."""

    _advice = "write an SQLite condition on columns of the table of runs, such as: max_score >= 50000"


class RankError(CorpusError, exit_code=54):
    """A rank outside its world, or more ranks than the rows suffice for."""

    _advice = "let the launcher set RANK and WORLD_SIZE, or give rank and world_size yourself"


class LoaderStateError(CorpusError, exit_code=55):
    """A loader's state is malformed, or belongs to another corpus or other settings."""

    _advice = "load it into a loader of the same corpus and settings as saved it, or start an epoch anew"


class RowsGoneError(CorpusError, exit_code=56):
    """A session's rows were truncated, replaced or deleted while the corpus was open."""

    _advice = "open the corpus anew; prune and merge sessions that nobody reads"


class MissingPackageError(TapeError, exit_code=60):
    """A required package is not installed; the hint names the extra that provides it."""

    _advice = "install what the message names, or tape2048 with the extra that has it"


class TrainingError(TapeError, exit_code=62):
    """The training of a critic cannot continue."""

    _advice = "correct what the message names and resume: the last checkpoint stands"


class DivergedError(TrainingError, exit_code=63):
    """The loss or its gradient is no longer finite; the last checkpoint is from before."""

    _advice = "resume from the last checkpoint with a lower learning_rate"


class CheckpointError(TrainingError, exit_code=64):
    """A training checkpoint is damaged, or belongs to other settings, rows or ranks."""

    _advice = "resume with the settings, rows and ranks that it was made with, or begin in another directory"


class EvaluationError(TapeError, exit_code=67):
    """A critic cannot be evaluated as requested: its split has no such part, or games of several players."""

    _advice = "evaluate on a part that the split has, of one player's games"


class DeviceError(TapeError, exit_code=65):
    """A device that this machine, or this build of PyTorch, does not have."""

    _advice = "name a device that is here, or auto; `tape2048 doctor` lists them"


class JobError(TapeError, exit_code=69):
    """A job over many sessions cannot be done as requested, or a task of it was lost too often."""

    _advice = "the same command goes on with what is not done; other parameters need another output directory"


class LossError(TapeError, exit_code=61):
    """A conversion would lose information that the target cannot hold, and this was not confirmed."""

    _advice = "confirm with --lossy, or convert to a format that holds everything"


class Skipped(NamedTuple):
    """An input that was left out, and the reason."""

    path: Path
    error: TapeError


def error_class(name: str) -> type[TapeError]:
    """Return the class of a name in a message or a report; TapeError for an unknown name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TapeError) else TapeError
