"""Settings of ``tape2048 train-player``, and the presets of the shipped networks."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from tape2048.base.resources import available_cores
from tape2048.base.settings import Count, NonNegative, Positive, Settings, Share, about, load_settings
from tape2048.errors import ConfigError
from tape2048.ntuple.network import DOWNGRADE, TILES, NetworkLayout, check_sums

#: The shipped configurations, one for each shipped network.
PRESETS = ("small", "fast", "strong")


class TrainingConfig(Settings, frozen=True, kw_only=True):
    """All settings of ``tape2048 train-player``."""

    removed = MappingProxyType(
        {
            "goal": "`goals` lists the sums of tiles with which games end",
            "plain_beta": "entries learn at separate rates from the first move on",
            "plain_moves": "entries learn at separate rates from the first move on",
        }
    )

    tuples: Annotated[
        str,
        about(
            "tuples, each by the hexadecimal digits of its cells (0 is top left, row by row). Each is used "
            "in 8 symmetries",
            why="four 5-tuples: 67 MB per stage in training, 8.4 MB in play",
            form="groups of 4 to 6 digits, separated by commas or spaces",
            many=True,
            pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        str,
        about(
            "tiles, or sums of different tiles, at which a new stage with separate tables starts",
            why="the values of late boards then learn only from late games",
            form="ascending tiles or sums, separated by commas or spaces; 12288 is 8192 and 4096",
            many=True,
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = "8192 16384"
    split_moves: Annotated[
        NonNegative,
        about(
            "number of moves after which the stages split. Before, all boards use the first stage's tables",
            why="the later stages then start from learned values",
        ),
    ] = 150_000_000
    initial_value: Annotated[
        float,
        about(
            "initial value of every board. High values lead to exploration (optimistic initialisation)",
            why="0 learns fastest within an hour",
        ),
    ] = 0.0
    beta: Annotated[
        float,
        about(
            "learning rate of a value, shared by its entries",
            why="temporal coherence lowers the rate of each entry",
            gt=0,
            le=1,
        ),
    ] = 1.0
    decay: Annotated[
        Share,
        about(
            "lambda of the lambda-return",
            why="0.5 learned faster than 0; 0.8 was noisier without being faster",
        ),
    ] = 0.5
    restart_moves_min: Annotated[
        Count,
        about(
            "games of at least this many moves restart from their middle. A large number disables restarts",
            why="late positions are rare without restarts",
        ),
    ] = 10
    pool_boards: Annotated[
        NonNegative,
        about(
            "number of boards to keep, per stage and thread, with which games entered the stage; 0: none. "
            "After `split_moves`, games start on these boards, unless they restart from their middle",
            why="restarts from the middle are enough for few stages",
        ),
    ] = 0
    goals: Annotated[
        str,
        about(
            "sums of different tiles at which games end. The rest of a game is valued as the board with its "
            "large tiles halved",
            why="games that end by the rules have true scores",
            form="ascending tiles or sums as in `stages`; empty: none",
            many=True,
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = ""
    guide_from: Annotated[
        NonNegative,
        about(
            "sum of different tiles from which every second game chooses by the values of boards with large "
            "tiles halved, until `anneal_moves` (on a GPU, to the end); 0: no game",
            why="only trainings with late stages need it",
            form="a sum as in `stages`, or 0",
        ),
    ] = 0
    moves: Annotated[Count, about("moves to learn from", why="about an hour on two cores")] = 6_000_000_000
    anneal_moves: Annotated[
        NonNegative,
        about(
            "number of last moves over which the learning rate falls to 0, which averages the entries over "
            "more games",
            why="a training that is stopped early does not reach them",
        ),
    ] = 0
    device: Annotated[
        str,
        about(
            "device that plays and learns: the processor, or a CUDA GPU",
            why="a GPU learns far faster, but needs `pool_boards`, and is not reproducible",
            choices=("cpu", "cuda"),
        ),
    ] = "cpu"
    gpu_games: Annotated[Count, about("games played at once on a GPU", why="fills the largest GPUs")] = 8448
    threads: Annotated[
        int,
        about(
            "threads that play and learn into the same tables, without locks; 0: the number of cores",
            why="one thread is reproducible; several learn about as much from a move",
            ge=0,
            le=256,
        ),
    ] = 1
    seed: Annotated[
        int,
        about(
            "seed of the games. With one thread, it determines the training",
            why="a training can be repeated",
            le=2**64 - 1,
            ge=0,
        ),
    ] = 2048
    downgrade: Annotated[
        NonNegative,
        about(
            "default of the player's `downgrade`: with a highest tile of this or more, it chooses on a board "
            "with smaller tiles; 0: never",
            why="in an hour, a network learns from few boards with a 16384, and values them badly",
            form="a tile, or 0",
        ),
    ] = DOWNGRADE
    checkpoint_s: Annotated[
        Positive, about("seconds between checkpoints", why="a crash loses at most ten minutes")
    ] = 600.0
    quantise_step: Annotated[
        float,
        about(
            "points of score per unit of an int16 entry; 0: store float32",
            why="half the memory and a smaller file",
            ge=0,
            le=1e6,
        ),
    ] = 16.0

    @property
    def layout(self) -> NetworkLayout:
        return NetworkLayout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

    def check(self) -> None:
        """Raise ConfigError for invalid tuples, stages, goals, guides, device or downgrade."""
        _ = self.layout, self.goal_sums, self.guide_sums
        if self.device == "cuda" and not self.pool_boards:
            raise ConfigError(
                "found device = 'cuda' with pool_boards = 0, expected at least 1: a GPU cannot restart games "
                "from their middle",
                hint="Set pool_boards, for example to 100_000.",
            )
        if self.downgrade not in {0, *TILES}:
            raise ConfigError(
                f"found downgrade = {self.downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}"
            )

    @property
    def goal_sums(self) -> tuple[int, ...]:
        return check_sums([int(total) for total in self.goals.split()], "goals")

    @property
    def guide_sums(self) -> tuple[int, ...]:
        return check_sums([self.guide_from] if self.guide_from else [], "guide_from")

    @property
    def thread_count(self) -> int:
        return self.threads or available_cores()


def preset_path(name: str) -> Path:
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}", hint=f"Use one of: {', '.join(PRESETS)}.")
    return Path(str(importlib.resources.files(__package__) / "presets" / f"{name}.toml"))


def load_training_config(path: Path, flags: Mapping[str, object] | None = None) -> TrainingConfig:
    """Read the configuration in a file, overridden by the flags that are not None."""
    listed_by = "tape2048 train-player --preset small --print-config"
    return load_settings(TrainingConfig, path, flags, listed_by=listed_by)
