"""Jobs over many sessions: an output for each session, made once, by any number of processes.

A job is an operation with its parameters, and a list of sessions. It writes into one directory::

    <session>...                  the outputs of a session, renamed into place when they are complete
    .job/job.json                 the operation and its parameters; another job is rejected
    .job/done/<session>.json      written last: the session is done, with a summary of the result
    .job/done/.<session>.*.tmp/   outputs in progress; the leftovers of a dead process are removed

A killed process loses only its current session, and the next process does it again. An output without a
record is compared with the new output: equal outputs are kept, and different outputs are an error. Two
processes that do the same session waste work, but damage nothing.

Only the name of a session decides its shard. Shards that list a growing directory at different times
therefore skip no session, and do no session twice.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tape2048._version import __version__
from tape2048.base.text import pretty_json
from tape2048.errors import MaintenanceError, MissingPathError, NameTakenError, TapeError
from tape2048.files.durable import Draft, fsync_dir, new_file, rename_noreplace, sweep_drafts, write_all
from tape2048.files.opening import storage_errors
from tape2048.files.reading import read_document, read_path
from tape2048.session.layout import MANIFEST, name_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: Makes the outputs of a session below a directory, and returns a summary. ``ok: False`` in it means that
    #: the session has defects. Then nothing is kept, and the session is tried again.
    Work = Callable[[Path, Path], dict[str, Any]]

_JOB, _DONE = ".job/job.json", ".job/done"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    manifest: str  # SHA-256 of its manifest.json; empty without one
    version: str  # of this package
    result: dict[str, Any]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one session. The status ``there`` means that it was done before."""

    path: str
    status: Literal["made", "there", "failed"]
    result: dict[str, Any] = {}  # the summary
    error: str | None = None  # class of the error
    message: str = ""
    hint: str | None = None

    @classmethod
    def failed(cls, path: Path, error: TapeError) -> Outcome:
        kind = type(error).__name__
        return cls(path=str(path), status="failed", error=kind, message=str(error), hint=error.hint)


@dataclass(frozen=True)
class Job:
    """An operation over sessions.

    Attributes:
        operation: the command, such as ``critic score``.
        parameters: everything that decides the bytes of an output, as plain JSON.
        work: function that makes the outputs of one session.
        out: the directory; None for work that writes into the sessions, and skips finished sessions itself.
    """

    operation: str
    parameters: Mapping[str, Any]
    work: Work
    out: Path | None

    def begin(self) -> None:
        """Make the directory; MaintenanceError if it belongs to another operation or to other parameters."""
        if self.out is None:
            return
        path = self.out / _JOB
        wanted = {"operation": self.operation, "parameters": self.parameters}
        with storage_errors(self.out, "preparing the directory"):
            (self.out / _DONE).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(NameTakenError), new_file(path) as fd:
                write_all(fd, pretty_json(wanted))
            for directory in (path.parent, self.out / _DONE):
                sweep_drafts(directory)
        found = _decode(path, dict[str, Any])
        for name, value in [("operation", self.operation), *self.parameters.items()]:
            there = found if name == "operation" else found.get("parameters") or {}
            if there.get(name) != value:
                raise MaintenanceError(
                    f"found outputs with {name} = {there.get(name)!r}, expected {value!r}",
                    path=self.out,
                    hint="Choose a different directory, or pass the parameters of the existing outputs.",
                )

    def done(self, sessions: Sequence[Path]) -> int:
        if self.out is None:
            return 0
        names = {path.name for path in (self.out / _DONE).iterdir()}
        return sum(f"{session.name}.json" in names for session in sessions)

    def find(self, session: Path) -> Outcome | None:
        """Return the outcome of a session that is done, or cannot be done into this directory, or None."""
        if self.out is None:
            return None
        try:
            record = _decode(self._record(session), _Record)
            if record.manifest != _manifest(session):
                raise MaintenanceError(
                    f"found an output of another session with this name (manifest {record.manifest})",
                    path=session,
                    hint="Choose a different directory for the outputs of this session.",
                )
        except MissingPathError:
            return None
        except TapeError as error:
            return Outcome.failed(session, error)
        return Outcome(path=str(session), status="there", result=record.result)

    def perform(self, session: Path) -> Outcome:
        if (found := self.find(session)) is not None:
            return found
        try:
            return Outcome(path=str(session), status="made", result=self._make(session))
        except TapeError as error:
            return Outcome.failed(session, error)

    def _record(self, session: Path) -> Path:
        assert self.out is not None
        return self.out / _DONE / f"{session.name}.json"

    def _make(self, session: Path) -> dict[str, Any]:
        if self.out is None:
            return self.work(session, session)
        manifest = _manifest(session)
        with storage_errors(self.out, "writing outputs"):
            with Draft(self.out / _DONE / session.name) as draft:
                result = self.work(session, draft.path)
                if not result.get("ok", True):
                    return result
                # A JSON file describes another file, and is renamed after it.
                for path in sorted(draft.path.iterdir(), key=lambda path: (path.suffix == ".json", path)):
                    try:
                        rename_noreplace(path, self.out / path.name)
                    except NameTakenError as error:
                        if not _equal(path, self.out / path.name):  # keep an equal output
                            raise NameTakenError(
                                "found a different output with this name. Nothing was replaced",
                                path=self.out / path.name,
                                hint="Choose a different directory.",
                            ) from error
                fsync_dir(self.out)
            record = _Record(session=session.name, manifest=manifest, version=__version__, result=result)
            with contextlib.suppress(NameTakenError), new_file(self._record(session)) as fd:
                write_all(fd, pretty_json(record))
        return result


def run_job(
    job: Job,
    sessions: Sequence[Path],
    *,
    shard: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], object] | None = None,
) -> list[Outcome]:
    """Do a shard's sessions, and return outcomes in order; a failed session does not stop the others."""
    mine = [session for session in sessions if shard_of(session.name, shard[1]) == shard[0]]
    outcomes = {session: found for session in mine if (found := job.find(session)) is not None}
    waiting = [session for session in mine if session not in outcomes]
    for session in waiting:
        outcomes[session] = job.perform(session)
        if progress is not None:
            progress(len(outcomes), len(mine))
    return [outcomes[session] for session in mine]


def shard_of(name: str, shards: int) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8]) % shards


def refuse_namesakes(sessions: Sequence[Path]) -> list[Path]:
    """Sort sessions, without repeated paths. MaintenanceError for two sessions of the same name."""
    by_name: dict[str, Path] = {}
    for path in map(Path.absolute, sessions):
        other = by_name.setdefault(path.name, path)
        if other != path:
            raise MaintenanceError(
                f"has the same name as {other}, but outputs have the names of sessions",
                path=path,
                hint="Use a separate output directory for each directory of sessions.",
            )
    return [by_name[name] for name in sorted(by_name, key=name_key)]


def _equal(one: Path, other: Path) -> bool:
    if one.is_file() or not other.is_dir():
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    names = {path.name for path in one.iterdir()}
    same = names == {path.name for path in other.iterdir()}
    return same and all(_equal(one / name, other / name) for name in names)


def _manifest(session: Path) -> str:
    try:
        return hashlib.sha256(read_path(session / MANIFEST).data).hexdigest()
    except MissingPathError:
        return ""


def _decode(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(read_document(path), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = "Remove it: the next call does its session again, and compares the outputs."
        raise MaintenanceError(f"malformed: {error}", path=path, hint=hint) from error
