"""Control of a running recorder from another process.

A request is a signal to the process that the status file names, and the answer is in the status file. Unlike
a socket or a request file, a signal leaves nothing behind for the next recorder, and the kernel checks who
may send it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import signal
import time
from pathlib import Path

from tape2048.errors import NotRunningError, RecorderError
from tape2048_recorder.status.signals import ROTATE, STOP_NOW
from tape2048_recorder.status.status_report import (
    Snapshot,
    judge,
    read_owned,
    read_snapshot,
    snapshots,
    status_path,
)

#: Polling interval of the status file, which the recorder writes as soon as a request is done.
LOOK_S = 0.1

_PATIENCE_S_MAX = 2e6  # poll(2) takes milliseconds in an int: 24 days


class Running(contextlib.AbstractContextManager["Running"]):
    """A running recorder. It is held by a pidfd, so that no signal can reach another process."""

    def __init__(self, out_dir: Path, instance: str | None) -> None:
        self._out_dir = out_dir
        if instance is None:
            found = snapshots(out_dir)
            alive = [each.instance for each in found if each.process.is_there or judge(each).running]
            names = alive if len(found) > 1 else [found[0].instance]
            if len(names) != 1:
                raise RecorderError(
                    f"found {len(alive)} running recorders, expected one: "
                    f"{', '.join(alive or [snapshot.instance for snapshot in found])}",
                    path=out_dir,
                    hint="Choose one with --instance.",
                )
            instance = names[0]
        self._instance = instance
        snapshot, owner = read_owned(out_dir, self._instance)
        verdict = judge(snapshot)
        self.process = snapshot.process
        if verdict.state == "stopped" or verdict.age_s < 0:
            raise self._not_running(verdict.text)
        if not self.process.is_local and verdict.state != "stale":
            hint = f"Run the command on {snapshot.host}, in the recorder's container if it has one."
            raise RecorderError(verdict.text, path=out_dir, hint=hint)
        try:
            self._pidfd = os.pidfd_open(self.process.pid)
        except ProcessLookupError:
            raise self._not_running(verdict.text) from None
        except OSError as error:
            raise RecorderError(
                f"the recorder (pid {self.process.pid}) cannot be signalled safely: {error.strerror}",
                path=out_dir,
                hint=f"Stop it with kill -TERM {self.process.pid}.",
            ) from error
        # By now, the file's pid may belong to another process. From now on, it cannot be reused.
        if not self.process.is_there:
            self.close()
            raise self._not_running(verdict.text)
        if (uid := _uid_of(self.process.pid)) != owner:  # the file's owner could misuse the caller's rights
            self.close()
            raise RecorderError(
                f"the status file of user {_user(owner)} names a process of user {_user(uid)} "
                f"(pid {self.process.pid}), which cannot have written it. No signal was sent",
                path=status_path(out_dir, self._instance),
                hint="Remove the file. A running recorder writes it again within a second.",
            )

    def _not_running(self, text: str) -> NotRunningError:
        return NotRunningError(
            f"no recorder is running here as instance {self._instance!r}: {text}",
            path=self._out_dir,
            hint="Check which recorder ran here last: tape2048 status.",
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._pidfd)

    def snapshot(self) -> Snapshot:
        return read_snapshot(self._out_dir, self._instance)

    def rotate(self, patience_s: float) -> str | None:
        """Make the recorder publish; return the session's path, or None without a new block."""
        before = self.snapshot().status
        if before.ending:
            raise RecorderError(
                "the recorder is ending, and will publish everything",
                path=self._out_dir,
                hint="Watch it with `tape2048 status --watch`.",
            )
        self._signal(ROTATE)
        deadline = time.monotonic() + patience_s
        while True:
            ended = self.wait(LOOK_S)
            rotation = self.snapshot().status.rotation
            if rotation.done > before.rotation.done and rotation.done > before.rotation.asked:
                break
            if ended:
                raise RecorderError(
                    f"the recorder (pid {self.process.pid}) ended before it published the session",
                    path=self._out_dir,
                    hint="Find the reason in its log. The next start publishes all committed rows.",
                )
            if time.monotonic() >= deadline:
                raise RecorderError(
                    f"the recorder has not published the session within {patience_s:g} s",
                    path=self._out_dir,
                    hint="Check `tape2048 status`. The request is still pending.",
                )
        if rotation.error is not None:
            raise RecorderError(f"the session could not be published: {rotation.error}", path=self._out_dir)
        return rotation.path

    def stop(self, *, drain: bool) -> None:
        """Make the recorder publish and end; with ``drain``, it finishes the games in progress first."""
        self._signal(signal.SIGTERM if drain else STOP_NOW)

    def wait(self, patience_s: float | None) -> bool:
        """Wait up to ``patience_s`` (None, or over three weeks: no limit); return whether it has ended."""
        ms = patience_s * 1000 if patience_s is not None and patience_s <= _PATIENCE_S_MAX else None
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(ms))

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except PermissionError:
            raise RecorderError(
                f"the recorder (pid {self.process.pid}) belongs to user {_user(_uid_of(self.process.pid))}, "
                f"but you are {_user(os.geteuid())}",
                path=self._out_dir,
                hint="Run the command as that user or root. For a service: sudo systemctl stop or reload.",
            ) from None
        except ProcessLookupError:
            raise self._not_running(f"pid {self.process.pid} has just ended") from None


def _uid_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None


def _user(uid: int | None) -> str:
    try:
        return "(unknown)" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
