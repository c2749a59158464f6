"""Former names of columns, fields and filters: each is an error that names the present name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The present name, and another difference.
RENAMED = {
    "id": ("run_id", ""),
    "max_score": ("score", "As a filter, max_score=50000 still means at most 50,000."),
    "step_idx": ("step", ""),
    "highest": ("highest_tile", "It is the tile, 2048, and not its exponent, 11."),
    "board_highest": ("board_highest_tile", "It is the tile, 2048, and not its exponent, 11."),
    "highest_after": ("highest_tile_after", "It is the tile, 2048, and not its exponent, 11."),
    "min_tile": ("min_highest_tile", ""),
    "max_tile": ("max_highest_tile", ""),
}


def name_hint(name: Any) -> str:
    """Return a sentence with the present name of a former one; empty for other names."""
    kind, _, moves = str(name).rpartition("_")
    kind, moves = (kind, f"_{moves}") if moves.isdecimal() else (str(name), "")
    if kind not in RENAMED:
        return ""
    new, more = RENAMED[kind]
    return f"{name} is now {new}{moves}. {more}".rstrip()


def first_hint(names: Iterable[Any]) -> str:
    """Return the hint for the first former name; empty without one."""
    return next(filter(None, map(name_hint, names)), "")


class NamedRuns(np.ndarray[Any, Any]):
    """A run table whose errors name the present name of a former column. Its columns are plain arrays."""

    def __getitem__(self, key: Any) -> Any:
        try:
            found = super().__getitem__(key)
        except (ValueError, KeyError) as error:
            if hint := first_hint([key] if isinstance(key, str) else np.atleast_1d(key).tolist()):
                raise type(error)(hint) from error
            raise
        return found.view(np.ndarray) if isinstance(key, str) else found
