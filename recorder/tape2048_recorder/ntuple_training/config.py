"""Settings of ``tape2048 train-player``, and the presets of the shipped networks."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError
from tape2048.ntuple.network import DOWNGRADE, TILES, NetworkLayout, check_sums
from tape2048.settings.fields import Count, NonNegative, Positive, Settings, Share, about, load_settings

#: Configurations in the package, for the shipped networks.
PRESETS = ("small", "fast", "strong")


class TrainingConfig(Settings, frozen=True, kw_only=True):
    """All settings of ``tape2048 train-player``."""

    removed = MappingProxyType({"goal": "`goals` lists the sums of tiles with which games end"})

    tuples: Annotated[
        str,
        about(
            "the tuples: cells as hexadecimal digits, row-major, 0 top left. Each counts in 8 symmetries",
            why="four 5-tuples: 67 MB a stage to learn, 8.4 MB to play",
            form="groups of 4 to 6 digits, separated by commas or spaces",
            many=True,
            pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        str,
        about(
            "the tiles, or sums of different tiles, at which a new stage, with its own tables, starts",
            why="only late games train the values of late boards",
            form="tiles or sums in ascending order, separated by commas or spaces: 12288 starts with 8192 "
            "and 4096",
            many=True,
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = "8192 16384"
    split_moves: Annotated[
        NonNegative,
        about(
            "moves after which the stages split; before, all boards use the first stage's tables",
            why="a stage starts from the values of the first, not from nothing",
        ),
    ] = 150_000_000
    initial_value: Annotated[
        float,
        about(
            "the initial value of every board; high values lead to exploration (optimistic initialisation)",
            why="0 learns fastest within an hour",
        ),
    ] = 0.0
    beta: Annotated[
        float,
        about(
            "the learning rate, divided among the entries of a value",
            why="temporal coherence lowers it",
            gt=0,
            le=1,
        ),
    ] = 1.0
    plain_moves: Annotated[
        NonNegative,
        about(
            "the first moves, in which all entries learn at one rate. Then each at its own (coherence)",
            why="temporal coherence learns faster from the first move on",
        ),
    ] = 0
    plain_beta: Annotated[
        float, about("the learning rate of plain_moves", why="that of Guei et al. (2021)", gt=0, le=1)
    ] = 0.1
    decay: Annotated[
        Share,
        about(
            "lambda of the lambda-return",
            why="0.5 learned twice as fast as 0; 0.8 was noisier without being faster",
        ),
    ] = 0.5
    restart_moves_min: Annotated[
        Count,
        about(
            "games of at least this many moves restart from their middle",
            why="late positions are rare without restarts. A large number switches them off",
        ),
    ] = 10
    pool_boards: Annotated[
        NonNegative,
        about(
            "start games at the last boards, this many for each stage and thread, that entered a stage: in "
            "the stage that has learned from the fewest moves; instead of restarts, once stages have split",
            why="restarts from the middle suffice for a few stages",
        ),
    ] = 0
    goals: Annotated[
        str,
        about(
            "the sums of different tiles with which games end. The value of the rest is the board's value "
            "with its large tiles halved",
            why="games that end by themselves teach what their scores are",
            form="as stages; empty: none",
            many=True,
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = ""
    guide_from: Annotated[
        NonNegative,
        about(
            "the sum of different tiles from which every second game, before anneal_moves (on a GPU always), "
            "chooses by the values of boards with large tiles halved; 0: none does",
            why="only trainings with late stages need it",
            form="a sum as in stages, or 0",
        ),
    ] = 0
    moves: Annotated[Count, about("moves to learn from", why="an hour or so on two cores")] = 6_000_000_000
    anneal_moves: Annotated[
        NonNegative,
        about(
            "the last moves, over which the learning rate falls to 0",
            why="averages the entries over more games. A training that stops early has none",
        ),
    ] = 0
    device: Annotated[
        str,
        about(
            "what plays and learns: threads of the processor, or a CUDA GPU",
            why="a GPU learns a hundred times as fast, but needs pool_boards and is not reproducible",
            choices=("cpu", "cuda"),
        ),
    ] = "cpu"
    gpu_games: Annotated[Count, about("games played at a time on a GPU", why="fills the largest GPUs")] = 8448
    threads: Annotated[
        int,
        about(
            "threads that play and learn into the same tables, without locks; 0: the number of cores",
            why="one is reproducible; two learn 1.8 times as fast, and about as much from a move",
            ge=0,
            le=256,
        ),
    ] = 1
    seed: Annotated[
        int,
        about(
            "64 bits that decide the games, with one thread",
            why="a training can be repeated",
            le=2**64 - 1,
            ge=0,
        ),
    ] = 2048
    downgrade: Annotated[
        NonNegative,
        about(
            "the player's default: from this highest tile on it chooses on a smaller board; 0: never",
            why="an hour shows a network few boards with a 16384, and it values them badly",
            form="a tile, or 0",
        ),
    ] = DOWNGRADE
    checkpoint_s: Annotated[
        Positive, about("seconds from one checkpoint to the next", why="the most that a crash costs")
    ] = 600.0
    quantise_step: Annotated[
        float,
        about(
            "points of score of one unit of an int16 entry; 0: float32",
            why="half the cache and a fifth of the file, for no measurable strength",
            ge=0,
            le=1e6,
        ),
    ] = 16.0

    @property
    def layout(self) -> NetworkLayout:
        """The network's tuples and stages."""
        return NetworkLayout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

    def check(self) -> None:
        """Check tuples, stages, goals and the tile to downgrade from."""
        _ = self.layout, self.goal_sums, self.guide_sums
        if self.device == "cuda" and not self.pool_boards:
            raise ConfigError(
                "found device = 'cuda' and pool_boards = 0, expected at least 1",
                hint="set pool_boards, for example to 100_000: a GPU cannot restart games from their middle",
            )
        if self.downgrade not in {0, *TILES}:
            raise ConfigError(
                f"found downgrade = {self.downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}"
            )

    @property
    def goal_sums(self) -> tuple[int, ...]:
        """``goals`` as numbers."""
        return check_sums([int(total) for total in self.goals.split()], "goals")

    @property
    def guide_sums(self) -> tuple[int, ...]:
        """``guide_from``, or nothing for 0."""
        return check_sums([self.guide_from] if self.guide_from else [], "guide_from")

    @property
    def thread_count(self) -> int:
        """``threads``, or for 0 the number of available cores."""
        return self.threads or available_cores()


def preset_path(name: str) -> Path:
    """Return the file of a preset."""
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}", hint=f"one of: {', '.join(PRESETS)}")
    return Path(str(importlib.resources.files(__package__) / "presets" / f"{name}.toml"))


def load_training_config(path: Path, flags: Mapping[str, object] | None = None) -> TrainingConfig:
    """Read the configuration of a file, overridden by flags (None: not given)."""
    listed_by = "tape2048 train-player --preset small --print-config"
    return load_settings(TrainingConfig, path, flags, listed_by=listed_by)
