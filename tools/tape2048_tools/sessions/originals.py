"""Removal of the sessions that a new one replaces, under the removal lock, as ``prune`` removes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tape2048.errors import TapeError
from tape2048.maintenance.removal import Removed, clear_leftovers, explain_refusal, remove_sessions
from tape2048.session.locks import RemovalLock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.errors import MaintenanceError


def check_removable(path: Path, kind: type[MaintenanceError], doing: str) -> None:
    """Refuse a session that could not be removed, before anything is written.

    Args:
        path: the session; whether it exists is left to whoever reads it.
        kind: class of the error.
        doing: what is to be done with it, as ``merge``.

    Raises:
        MaintenanceError: it is not safe to remove, or has embeddings, which no copy has.
    """
    if not os.path.lexists(path):
        return
    why = explain_refusal(path.absolute())
    if why is None and (path / "embeddings.json").exists():
        why = "it has embeddings, which the new session would lack"
    if why is not None:
        raise kind(
            f"this session cannot be removed: {why}; nothing was written",
            path=path,
            hint=f"{doing} without --remove, or leave it out",
        )


def remove_originals(paths: Sequence[Path]) -> list[Removed]:
    """Remove sessions, directory by directory, and continue after a failure; return the outcomes."""
    done: list[Removed] = []
    absolute = [path.absolute() for path in paths]
    for root in sorted({path.parent for path in absolute}):
        here = [path for path in absolute if path.parent == root]
        try:
            with RemovalLock(root) as upkeep:
                clear_leftovers(root, upkeep)  # `prune` reports its failures
                done += remove_sessions(root, here, upkeep)
        except TapeError as error:
            # Removals that are not durable yet count as failed, too.
            done = [outcome for outcome in done if outcome.path not in here]
            done += [Removed(path, gone=False, error=error) for path in here]
    return done


def describe_kept(outcome: Removed) -> str:
    """Return why a session was not removed."""
    return "it is being read" if outcome.error is None else str(outcome.error)
