"""What ``tape2048 train-player`` can be told, and the presets that make the networks we ship."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError, UnknownKeyError
from tape2048.ntuple.layout import TILES, Layout
from tape2048.ntuple.network import DOWNGRADE
from tape2048.settings.fields import Count, Settings, about, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Configurations that come with the package; ``default`` and ``fast`` made the networks of those names.
PRESETS = ("default", "fast", "strong")


class TrainingConfig(Settings, frozen=True, kw_only=True):
    """Everything that ``tape2048 train-player`` can be told."""

    tuples: Annotated[
        str,
        about(
            "the tuples: cells as hexadecimal digits, row-major, 0 top left; each counts in 8 symmetries",
            why="four 5-tuples: 16.8 MB a stage, which stays in the last-level cache",
            form="groups of 4 to 6 digits, separated by a space",
            pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        str,
        about(
            "the tiles from which on a board has tables of its own",
            why="late boards are valued by late games alone",
            form="tiles in ascending order, separated by a space",
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = "8192 16384"
    split_moves: Annotated[
        int,
        about(
            "moves after which the stages part; before, all boards use the first one's tables",
            why="a stage begins with what the one before it knows, not with nothing",
            ge=0,
        ),
    ] = 150_000_000
    initial_value: Annotated[
        float,
        about(
            "the value of every board at the start; high values are explored (optimistic initialisation)",
            why="0 learns fastest within an hour",
        ),
    ] = 0.0
    beta: Annotated[
        float,
        about(
            "the learning rate, shared by the entries of a value",
            why="temporal coherence lowers it itself",
            gt=0,
            le=1,
        ),
    ] = 1.0
    decay: Annotated[
        float,
        about(
            "lambda of the lambda-return",
            why="0.5 learned twice as fast as 0; 0.8 was noisier than it was fast",
            ge=0,
            le=1,
        ),
    ] = 0.5
    restart_moves_min: Annotated[
        Count,
        about(
            "a game of at least this many moves is begun again from its middle",
            why="late positions are rare without; a large number switches restarts off",
        ),
    ] = 10
    moves: Annotated[
        Count,
        about("moves to learn from", why="an hour or so on two cores"),
    ] = 6_000_000_000
    anneal_moves: Annotated[
        int,
        about(
            "the last moves, over which the learning rate falls to 0",
            why="entries settle on means in place of their last games; a training that is cut short has none",
            ge=0,
        ),
    ] = 0
    threads: Annotated[
        int,
        about(
            "threads that play and learn into the same tables, without locks; 0: one for each core",
            why="the seed decides the games of one; two learn 1.8 times as fast, about as much from a move",
            ge=0,
            le=256,
        ),
    ] = 1
    seed: Annotated[
        int,
        about(
            "64 bits that decide the games of one thread alone",
            why="a run can be repeated",
            le=2**64 - 1,
            ge=0,
        ),
    ] = 2048
    downgrade: Annotated[
        int,
        about(
            "the highest tile from which on the player takes boards for smaller ones, unless told; 0: never",
            why="an hour shows a network few boards with a 16384, and it values them badly",
            form="a tile, or 0",
            ge=0,
        ),
    ] = DOWNGRADE
    checkpoint_s: Annotated[
        float,
        about("seconds from one checkpoint to the next", why="what a crash may cost", gt=0),
    ] = 600.0
    quantise_step: Annotated[
        float,
        about(
            "points of score that an int16 entry counts in; 0: float32",
            why="half the cache, and a fifth of the file, for no strength that shows",
            ge=0,
            le=1e6,
        ),
    ] = 16.0

    @property
    def layout(self) -> Layout:
        """The network's tuples and stages.

        Raises:
            ConfigError: they cannot be.
        """
        return Layout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

    def check(self) -> None:
        """Refuse tuples, stages or a tile to downgrade from that no network can have.

        Raises:
            ConfigError: found, and expected.
        """
        _ = self.layout
        if self.downgrade not in {0, *TILES}:
            raise ConfigError(
                f"found downgrade = {self.downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}"
            )

    @property
    def thread_count(self) -> int:
        """``threads``, with 0 replaced by the cores that this process may use now."""
        return self.threads or available_cores()


def preset_path(name: str) -> Path:
    """The file of a preset.

    Raises:
        UnknownKeyError: there is none of this name.
    """
    if name not in PRESETS:
        raise UnknownKeyError(f"no preset is called {name!r}", hint=f"one of: {', '.join(PRESETS)}")
    return Path(str(importlib.resources.files(__package__) / "presets" / f"{name}.toml"))


def load_training_config(path: Path, flags: Mapping[str, object] | None = None) -> TrainingConfig:
    """The configuration of a file, with what flags say in place of it (None: not given).

    Raises:
        UnknownKeyError: a setting that does not exist.
        ConfigError: a value that cannot be, or a file that cannot be read.
    """
    listed_by = "tape2048 train-player --preset default --print-config"
    return load_settings(TrainingConfig, path, flags, listed_by=listed_by)
