"""Checks of sessions and data sets, and the results that ``tape2048 validate`` prints and keeps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tape2048.base.findings import Finding, Report
from tape2048.base.lazy import load_named
from tape2048.base.text import pretty_json
from tape2048.errors import ReplayError, TapeError
from tape2048.files.durable import write_file
from tape2048.maintenance.validation import validate_session

#: The checks that load a player or the older formats, imported when they are needed.
_REPLAY = "tape2048_recorder.replay.replay:replay_session"
_VERIFY_DATASET = "tape2048.runs.verify:verify_dataset"


def _no_bar(_title: str) -> AbstractContextManager[None]:
    return nullcontext()


class Validated(Report, frozen=True, kw_only=True):
    """The result of checking one session or data set.

    Attributes:
        name: the directory's name.
        replayed: number of runs replayed; None if not requested, or not possible.
        not_replayed: reason why no run could be replayed, or None.
        removed: whether another process removed it before or during the check.
        quarantined: the path in the quarantine, or None.
    """

    name: str
    replayed: int | None = None
    not_replayed: str | None = None
    removed: bool = False
    quarantined: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The result for JSON."""
        return {"ok": self.ok, **msgspec.to_builtins(self)}


class Check(NamedTuple):
    """The check of a session: whether to replay its games, the overlay of its columns, the data sets."""

    replay: bool
    overlay: Path | None
    datasets: frozenset[Path]

    def __call__(self, path: Path, bar: Callable[[str], AbstractContextManager[Any]] = _no_bar) -> Validated:
        """Check a session or a data set; ``bar`` opens a progress bar with a title."""
        is_dataset = path in self.datasets
        with bar("reading") as progress:
            if is_dataset:
                report = load_named(_VERIFY_DATASET)(path, progress=progress)
            else:
                report = validate_session(path, columns=self.overlay, progress=progress)
        result = Validated(name=Path(report.path).name, **msgspec.structs.asdict(report))
        if not self.replay or not (report.ok or is_dataset):  # damaged games prove nothing about the player
            return result
        if is_dataset:
            return replace(result, not_replayed="a data set's games are checked move by move instead")
        try:
            with bar("replaying") as progress:
                again = load_named(_REPLAY)(path, progress=progress)
        except ReplayError as error:  # such as an unknown player, which is no defect of the games
            return replace(result, not_replayed=f"{error.message}. {error.advice}")
        except TapeError as error:
            return replace(result, findings=(Finding.of(error),))
        return replace(result, replayed=again.runs, findings=tuple(again.findings))

    def keep(self, session: Path, draft: Path) -> dict[str, Any]:
        """Check a session, and write the result to a file for it; the work of a job."""
        document = self(session).document
        write_file(draft / f"{session.name}.json", pretty_json(document))
        return document
