"""The calibrations in a network's file: in its ``facts``, under ``calibrations``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.errors import ModelError
from tape2048.ntuple.calibration import PHASES, VALUES, Calibration
from tape2048.ntuple.network import StoredNetwork, map_network, network_path

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The name of the calibrations in a network's facts.
CALIBRATIONS = "calibrations"


def calibrations_of(weights: str) -> list[Calibration]:
    """Return the calibrations in a network's file, named as for :func:`tape2048.ntuple.load_network`.

    Raises:
        ModelError: the file has an invalid calibration.

    Example:
        >>> calibrations_of("fast")[0].games > 20_000
        True
    """
    facts = StoredNetwork.of(map_network(weights), weights).facts.get(CALIBRATIONS, [])
    try:
        found = msgspec.convert(facts, list[Calibration])
        tables = [one.table for one in found]
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelError(f"a calibration is invalid: {error}", path=network_path(weights)) from error
    for table in tables:
        rises = (np.diff(table) >= 0).all() and np.isfinite(table).all()
        if not rises or table.shape[1:] != (PHASES, VALUES):
            raise ModelError(
                f"a calibration has a table of shape {table.shape}, or values that do not ascend; expected "
                f"at most {PHASES} phases of {VALUES} ascending values",
                path=network_path(weights),
                hint="Make it again: tape2048 player calibrate",
            )
    return found


def own_calibration(player: str, args: Mapping[str, Any], sha256: str) -> Calibration | None:
    """Return the calibration of a player's own values in its own games, if its network has one."""
    return find_calibration(str(args["weights"]), sha256, sha256) if player == "ntuple" else None


def find_calibration(weights: str, values_of: str, player_sha256: str | None = None) -> Calibration | None:
    """Return a network's calibration of the values of a player, in the games of a player; None: of any."""
    for one in calibrations_of(weights):
        if one.values_of == values_of and player_sha256 in {None, one.player_sha256}:
            return one
    return None
