"""Settings of the training of an n-tuple critic, and its presets."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Annotated

from tape2048.base.resources import available_cores
from tape2048.critic.config import LearningConfig
from tape2048.errors import ConfigError
from tape2048.ntuple.layout import TILES, NetworkLayout
from tape2048.settings.fields import Count, Positive, Share, about

#: Configurations in the package, each of the critic that ships under its name.
PRESETS = ("default",)


class NTupleCriticConfig(LearningConfig, frozen=True, kw_only=True):
    """The settings of a training by temporal differences.

    Example:
        >>> from tape2048.critic.ntuple import NTupleCriticConfig
        >>> NTupleCriticConfig(stages="8192").layout.stage_count
        2
    """

    player: Annotated[
        str,
        about(
            "play games with this built-in player, and record none, in place of reading `data`; empty: no",
            why="recorded games are there, and can be examined",
        ),
    ] = ""
    games: Annotated[
        Count | None,
        about("games that `player` plays", why="a player needs it: 15,000 make a good critic", none="off"),
    ] = None
    tuples: Annotated[
        str,
        about(
            "the tuples: cells as hexadecimal digits, row-major, 0 top left; each counts in 8 symmetries",
            why="four 5-tuples; with 6 cells, 15,000 games visit an entry too seldom",
            group="Model",
            form="groups of 4 to 6 digits, separated by a space",
            pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        str,
        about(
            "the tiles, or sums of different tiles, at which a new stage, with its own tables, begins",
            why="the same pattern means more where large tiles are there already",
            form="tiles or sums in ascending order, separated by a space: 12288 begins with 8192 and 4096",
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = "4096 8192 16384"
    stride: Annotated[
        Count,
        about(
            "learn from every so many rows of a game, from its first on",
            why="neighbouring boards are almost the same, and half a byte a row stays in memory",
            group="Training",
        ),
    ] = 16
    decay: Annotated[
        Share,
        about(
            "lambda of the lambda-return, from one row that is learned from to the next",
            why="0.6, 0.9 and 0.95 learned less from as many games",
        ),
    ] = 0.8
    learning_rate: Annotated[
        float,
        about(
            "step of a weight at its first row; AdaGrad divides it by the root of the squared errors so far",
            why="0.03 learned slower, 0.2 no faster",
            gt=0,
            le=100,
        ),
    ] = 0.1
    epochs: Annotated[
        Count,
        about("passes over the games; the rate falls to 0 over them", why="more than 12 gave little"),
    ] = 12
    patience: Annotated[
        Count | None,
        about(
            "end after so many validations in a row without a lower loss, with the critic of the lowest",
            why="outcomes of some hundred games are too few to choose by",
            none="off",
        ),
    ] = None
    threads: Annotated[
        int,
        about(
            "threads that learn into the same tables, without locks; 0: one for each core",
            why="one is reproducible; several learn as much from a row",
            group="Machine and file",
            ge=0,
            le=256,
        ),
    ] = 0
    checkpoint_s: Annotated[
        Positive, about("seconds from one checkpoint to the next", why="the most that a crash costs")
    ] = 300.0
    weight_step: Annotated[
        float,
        about(
            "the unit of a stored weight, in logits; the largest weight is 32767 of them",
            why="finer ones are no better, and larger files",
            ge=0.001,
            le=1,
        ),
    ] = 1 / 32
    prune_below: Annotated[
        float,
        about(
            "put the mean of its table in the place of each weight that saw less squared error than this",
            why="0.1 halves the file; of 15,000 games it costs accuracy, of 100,000 none",
            ge=0,
        ),
    ] = 0.0

    @property
    def layout(self) -> NetworkLayout:
        """The tuples and stages; ConfigError for invalid ones."""
        return NetworkLayout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

    @property
    def thread_count(self) -> int:
        """``threads``, or for 0 the number of available cores."""
        return self.threads or available_cores()

    def check(self) -> None:
        """Raise ConfigError for settings that are valid one by one and contradict each other."""
        super().check()
        if self.tiles[-1] > TILES[-1]:
            raise ConfigError(f"thresholds: found {self.tiles[-1]}, expected tiles up to {TILES[-1]}")
        _ = self.layout
        if bool(self.player) != (self.games is not None):
            raise ConfigError(
                f"player: found {self.player!r} beside games = {self.games}, expected both or none",
                hint="--player ntuple --games 15k",
            )


def preset_path(name: str) -> Path:
    """Return the file of a preset; ConfigError for an unknown one."""
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}", hint=f"one of: {', '.join(PRESETS)}")
    return Path(str(importlib.resources.files(__package__) / "presets" / f"{name}.toml"))
