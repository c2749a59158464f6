"""The tiles of a table: a player of any strength has some that divide its games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Tile = TypeVar("Tile", int, str)

_TILES_MAX = 5  # columns of tiles in a table
_SPREAD_MIN = 0.01 * 0.99  # p * (1 - p) of a tile that almost no game reaches, or almost every game


def tiles_shown(reaches: Iterable[Mapping[Tile, float | None]]) -> list[Tile]:
    """Choose the tiles of a table, at most five: those that some games of a row reach, and others do not.

    Args:
        reaches: for each row of the table, the share of its games that reached each tile, tiles ascending.
            Rows without games have None.

    Returns:
        Tiles, ascending. If every game reaches the same tiles, the highest of these. None without games.
    """
    known: list[Mapping[Tile, Any]] = [one for one in reaches if None not in one.values()]
    spread = {tile: max(p * (1 - p) for p in _shares(known, tile)) for tile in (known[0] if known else ())}
    telling = sorted(spread, key=lambda tile: -spread[tile])[:_TILES_MAX]
    found = [tile for tile in spread if tile in telling and spread[tile] >= _SPREAD_MIN]
    return found or [tile for tile in spread if min(_shares(known, tile)) > 0.5][-1:] or list(spread)[:1]


def tiles_of_players(players: Iterable[Mapping[str, Any]]) -> list[str]:
    """Choose the tiles of a table of players, from their documents with ``games`` and ``reach``."""
    return tiles_shown(
        {tile: rate["share"] for tile, rate in one["reach"].items()} for one in players if one["games"]
    )


def _shares(reaches: Sequence[Mapping[Tile, float]], tile: Tile) -> list[float]:
    return [one[tile] for one in reaches]
