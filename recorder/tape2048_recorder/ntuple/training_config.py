"""What ``tape2048 train-player`` can be told, and the presets that make the networks we ship."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tape2048._cores import available_cores
from tape2048.errors import ConfigError, UnknownKeyError
from tape2048.settings_fields import Origin, about, read_value, settings_of, unknown_key
from tape2048.settings_toml import read_toml
from tape2048_recorder.ntuple.arguments import TILES
from tape2048_recorder.ntuple.network import DOWNGRADE, Layout

__all__ = ["PRESETS", "TrainingConfig", "load_training_config", "preset_path"]

#: Configurations that come with the package; ``default`` and ``fast`` made the networks of those names.
PRESETS = ("default", "fast", "strong")

Positive = Annotated[int, msgspec.Meta(ge=1)]


class TrainingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that ``tape2048 train-player`` can be told."""

    tuples: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$")],
        about(
            "the tuples: cells as hexadecimal digits, row-major, 0 top left; each counts in 8 symmetries",
            why="four 5-tuples: 16.8 MB a stage, which stays in the last-level cache",
            form="groups of 4 to 6 digits, separated by a space",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$")],
        about(
            "the tiles from which on a board has tables of its own",
            why="late boards are valued by late games alone",
            form="tiles in ascending order, separated by a space",
        ),
    ] = "8192 16384"
    split_moves: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        about(
            "moves after which the stages part; before, all boards use the first one's tables",
            why="a stage begins with what the one before it knows, not with nothing",
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
        Annotated[float, msgspec.Meta(gt=0, le=1)],
        about(
            "the learning rate, shared by the entries of a value", why="temporal coherence lowers it itself"
        ),
    ] = 1.0
    decay: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)],
        about(
            "lambda of the lambda-return",
            why="0.5 learned twice as fast as 0; 0.8 was noisier than it was fast",
        ),
    ] = 0.5
    restart_moves_min: Annotated[
        Positive,
        about(
            "a game of at least this many moves is begun again from its middle",
            why="late positions are rare without; a large number switches restarts off",
        ),
    ] = 10
    moves: Annotated[
        Positive,
        about("moves to learn from", why="an hour or so on two cores"),
    ] = 6_000_000_000
    anneal_moves: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        about(
            "the last moves, over which the learning rate falls to 0",
            why="entries settle on means in place of their last games; a training that is cut short has none",
        ),
    ] = 0
    threads: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=256)],
        about(
            "threads that play and learn into the same tables, without locks; 0: one for each core",
            why="the seed decides the games of one; two learn 1.8 times as fast, about as much from a move",
        ),
    ] = 1
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        about("64 bits that decide the games of one thread alone", why="a run can be repeated", le=2**64 - 1),
    ] = 2048
    downgrade: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        about(
            "the highest tile from which on the player takes boards for smaller ones, unless told; 0: never",
            why="an hour shows a network few boards with a 16384, and it values them badly",
            form="a tile, or 0",
        ),
    ] = DOWNGRADE
    checkpoint_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0)],
        about("seconds from one checkpoint to the next", why="what a crash may cost"),
    ] = 600.0
    quantise_step: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1e6)],
        about(
            "points of score that an int16 entry counts in; 0: float32",
            why="half the cache, and a fifth of the file, for no strength that shows",
        ),
    ] = 16.0

    @property
    def layout(self) -> Layout:
        """The network's tuples and stages.

        Raises:
            ConfigError: they cannot be.
        """
        return Layout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

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


def load_training_config(path: Path, flags: dict[str, object] | None = None) -> TrainingConfig:
    """The configuration of a file, with what flags say in place of it (None: not given).

    Raises:
        UnknownKeyError: a setting that does not exist.
        ConfigError: a value that cannot be, or a file that cannot be read.
    """
    settings = settings_of(TrainingConfig)
    values: dict[str, Any] = {name: setting.default for name, setting in settings.items()}
    listed_by = "tape2048 train-player --preset default --print-config"
    raws, lines = read_toml(path, sample_hint=f"name another with --config; `{listed_by}` prints one")
    given = [(name, raw, Origin("file", f"{path}:{lines[name]}")) for name, raw in raws.items()]
    given += [
        (name, raw, Origin("flag", "--" + name.replace("_", "-")))
        for name, raw in (flags or {}).items()
        if raw is not None
    ]
    for name, raw, origin in given:
        if name not in settings:
            raise unknown_key(name, settings, origin, listed_by=listed_by)
        values[name] = read_value(settings[name], raw, origin)
    config = msgspec.convert(values, TrainingConfig)
    try:
        _ = config.layout
    except ConfigError as error:
        raise ConfigError(error.message, path=path, hint=error.hint) from error
    if config.downgrade not in {0, *TILES}:
        found = f"found downgrade = {config.downgrade}"
        raise ConfigError(f"{found}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}", path=path)
    return config
