"""Recovery: publishes the sessions that a killed recorder left open."""

from __future__ import annotations

import fnmatch
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import FormatError, TapeError
from tape2048.io.durable import storage_error
from tape2048.maintenance.quarantine import quarantine
from tape2048_recorder.recording.journal import JOURNAL
from tape2048_recorder.recording.partial import PARTIAL_SUFFIX, stage_of
from tape2048_recorder.recording.publish import recover
from tape2048_recorder.recording.publisher import utc_text

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.status.report import Reporter


def recover_all(out_dir: Path, instance: str, reporter: Reporter) -> list[Path]:
    """Publish what killed recorders of this instance left; call with the instance's lock held.

    What makes no sense is put into the quarantine with the reason; what the operating system would not
    read or write is left for the next start. Both are reported.
    """
    try:
        # Not Path.glob, which takes what cannot be listed for empty (since Python 3.13).
        names = fnmatch.filter(os.listdir(out_dir), f".*.{instance}{PARTIAL_SUFFIX}")  # noqa: PTH208
        partials = sorted(out_dir / name for name in names)
    except OSError as error:
        raise storage_error(error, out_dir, "looking for unfinished sessions") from error
    found = []
    for partial in partials:
        try:
            published = recover(out_dir, partial, ended_at=_last_written(partial))
        except FormatError as error:
            _put_away(out_dir, partial, error, reporter)
            continue
        except TapeError as error:
            reporter.event("error", f"not recovered, left as it is: {error}")
            continue
        if published.path is not None:
            found.append(published.path)
            what = f"recovered {published.path.name}: {published.contents}, of a recorder that was killed"
            reporter.event("warning", what)
        if published.rows_lost:
            lost = counted(published.rows_lost, "row")
            reporter.event("error", f"{partial.name}: {lost} did not match checksums")
    return found


def _put_away(out_dir: Path, partial: Path, error: FormatError, reporter: Reporter) -> None:
    found = Finding.of(error)
    try:
        where = quarantine(out_dir, partial, [found], by="recovery")
    except TapeError as refused:
        reporter.event("error", f"not recovered, left as it is: {error} ({refused.message})")
    else:
        reporter.event("error", f"not recovered, put into {where.parent.name}/{where.name}: {error}")


def _last_written(partial: Path) -> str:
    try:
        moment = (stage_of(partial) / JOURNAL).stat().st_mtime
    except OSError:
        return utc_text()
    return utc_text(datetime.fromtimestamp(moment, UTC))
