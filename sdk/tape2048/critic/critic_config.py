"""Settings of the training of critics, as frozen Structs.

Each field has its meaning and the reason for its default. The command line, its help and
``config/critic.example.toml`` are generated from them. This module does not need torch.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from tape2048.base.resources import available_cores
from tape2048.base.settings import Count, Positive, Settings, Share, about
from tape2048.base.text import counted
from tape2048.errors import ConfigError
from tape2048.files.training_directory import check_same
from tape2048.ntuple.network import NetworkLayout
from tape2048.session.layout import TOP_TILE
from tape2048.session.run_table import check_thresholds
from tape2048.session.stored import is_url

#: Settings that do not decide what a training learns: they may change when it is resumed.
FREE = frozenset(
    {"cache", "cache_max_mb", "checkpoint_s", "checkpoint_steps", "columns", "data", "device", "load"}
    | {"loader_threads", "out", "prune_below", "tensorboard", "threads", "wandb_project", "weight_step"}
)

#: Values of earlier versions that are the defaults of other settings now, or that changed nothing.
_EARLIER = {"targets": "outcome", "teacher": "", "clip_norm": 1.0, "weight_decay": 0.01}

#: Far above any useful learning rate; AdamW's step in float32 overflows at about 1e37.
_LEARNING_RATE_MAX = 1e30


#: The name of a column, or nothing.
_COLUMN = r"^([a-z][a-z0-9_]{0,63})?$"


class LearningConfig(Settings, frozen=True, kw_only=True):
    """The settings that all kinds of critics share: games, tiles, split."""

    data: Annotated[
        str,
        about(
            "the directory of sessions (or one session, or a store: s3://bucket/prefix) to learn from",
            why="where `record` writes sessions",
            group="Data and output",
            flag="DATA",
        ),
    ] = "selfplay"
    where: Annotated[
        str,
        about(
            'a condition on runs in SQL, such as "score >= 50000"; empty: all runs',
            why="a critic should learn from the kind of games that it will score",
        ),
    ] = ""
    columns: Annotated[
        str, about("overlay directory with columns; empty: none", why="only sessions in a store need it")
    ] = ""
    targets: Annotated[
        str,
        about(
            "column with the probabilities to learn, one per threshold; empty: the outcomes of the games",
            why="every session has outcomes; `critic score` writes a critic's probabilities as a column",
            form="the name of a column",
            pattern=_COLUMN,
        ),
    ] = ""
    weight: Annotated[
        str,
        about(
            "column with the weight of each row in the loss; empty: equal weights",
            why="a critic should be right wherever games lead",
            form="the name of a column",
            pattern=_COLUMN,
        ),
    ] = ""
    cache: Annotated[
        str,
        about(
            "local directory for sessions of a store; empty: tape2048/sessions below ~/.cache",
            why="a store's sessions are fetched once",
        ),
    ] = ""
    cache_max_mb: Annotated[
        Count | None,
        about(
            "bound of the cache, in MB (10**6 bytes)",
            why="about a dozen sessions of 1e9 rows on tape",
            none="off",
            flag="",
        ),
    ] = 20_000
    out: Annotated[
        str,
        about(
            "the directory that receives checkpoints, metrics and critics",
            why="in the current directory. A training that was stopped there is resumed",
        ),
    ] = "critic"
    player_name: Annotated[
        str,
        about(
            "the player whose games are learned from, by the name that `tape2048 list` shows, or its first "
            "words; empty: the only player",
            why="sessions of one player are the common case",
        ),
    ] = ""
    mixed_players: Annotated[
        bool,
        about(
            "learn from games of several players together",
            why="the probabilities differ between players",
        ),
    ] = False
    thresholds: Annotated[
        str,
        about(
            "the tiles to predict, ascending",
            why="strong players reach them often, sometimes and rarely",
            form="tiles in ascending order, separated by commas or spaces",
            many=True,
            pattern=r"^[0-9]+( [0-9]+)*$",
        ),
    ] = "8192 16384 32768"
    val_share: Annotated[
        Share, about("share of the runs that decide when to stop", why="a tenth of 2,000 games is 200")
    ] = 0.1
    test_share: Annotated[
        Share, about("share of the runs that training never reads", why="`critic eval` needs held-out games")
    ] = 0.1
    split_salt: Annotated[
        str, about("text that selects another split", why="other commands then make the same split")
    ] = ""
    seed: Annotated[
        int,
        about(
            "seed of first parameters, order of rows and random choices",
            why="a training can be repeated",
            le=2**63 - 1,
            ge=0,
        ),
    ] = 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """Thresholds as numbers."""
        return tuple(int(tile) for tile in self.thresholds.split())

    @property
    def column_options(self) -> dict[str, Any]:
        """The labels and the weight of rows, as arguments of ``Corpus.batches``."""
        return {"thresholds": self.tiles, "targets": self.targets or None, "weight": self.weight or None}

    @property
    def fractions(self) -> dict[str, float]:
        """A mapping of the split's parts to their shares. A share of 0 makes no part."""
        rest = round(1 - self.val_share - self.test_share, 9)
        shares = {"train": rest, "val": self.val_share, "test": self.test_share}
        return {name: share for name, share in shares.items() if share > 0 or name != "test"}

    def check(self) -> None:
        """Raise ConfigError for settings that are valid one by one but contradict each other."""
        if is_url(self.out):
            raise ConfigError(f"out: found {self.out}, expected a directory")
        try:
            tiles = check_thresholds(self.tiles).tolist()
        except ValueError as error:
            raise ConfigError(f"thresholds: {error}") from error
        if tiles != sorted(tiles):
            raise ConfigError(f"thresholds: found {self.thresholds}, expected ascending tiles")
        if not (self.val_share > 0 and self.fractions["train"] > 0):
            raise ConfigError(
                f"val_share: found {self.val_share} beside test_share {self.test_share}, "
                "expected a part for validation and a part for training",
                hint="early stopping and the choice of the best critic need games outside the training part",
            )

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide the result of a training. The others may change."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name not in FREE}

    def check_resumed(
        self, saved: dict[str, Any], saved_data: dict[str, Any], data: dict[str, Any], path: Path
    ) -> None:
        """Raise a StateError unless a checkpoint is of these settings and of this data.

        A setting that an earlier version did not have counts as its default. A removed setting is ignored if
        it had its default.
        """
        found = {
            name: value
            for name, value in saved.items()
            if name not in FREE and value != _EARLIER.get(name, ...)
        }
        defaults, expected = type(self)().deciding(), {**self.deciding(), **data}
        hint = "resume with its settings and data, or start over with another --out"
        if saved_data.get("corpus") == data["corpus"]:  # another condition may select the same rows
            expected["where"] = found.get("where", "")
        else:
            hint += "; --where \"started < '2026-11-21T06:00:00Z'\" leaves out later sessions"
        if gone := found.keys() - expected.keys():
            hint = f"this version has no {', '.join(sorted(gone))}: start over with another --out"
        check_same({**defaults, **found, **saved_data}, expected, path, hint)


class CriticConfig(LearningConfig, frozen=True, kw_only=True):
    """The settings of the training of a PyTorch critic.

    Example:
        >>> from tape2048.critic import CriticConfig
        >>> CriticConfig(thresholds="2048 4096", epochs=3).tiles
        (2048, 4096)
    """

    removed = MappingProxyType(
        {
            "clip_norm": "a gradient longer than 1 is scaled down to 1",
            "load": "rows are in memory if they fit half of it, else mapped",
            "loader_threads": "one thread prefetches batches",
            "teacher": "`targets` names a column, such as `critic score` writes for a critic",
            "weight_decay": "it is 0.01",
        }
    )

    use_embeddings: Annotated[
        bool,
        about(
            "train only a head, on the sessions' embeddings; otherwise tower and head together, on tokens",
            why="embeddings need `tape2048 embed` first",
        ),
    ] = False
    per_run: Annotated[
        Count | None,
        about(
            "maximum number of rows of each run in an epoch, spread over the run, drawn again for each "
            "epoch, and weighted by rows of the run / drawn rows",
            why="positions of one game are similar, and long games have thousands",
            none="off",
        ),
    ] = 512
    augment: Annotated[
        str,
        about(
            "d4: turn and mirror each board at random (only on tokens)",
            why="the eight symmetries of a board are worth the same",
            choices=("d4", "none"),
            flag="",
        ),
    ] = "d4"
    tower: Annotated[
        str,
        about(
            "directory of the tower to start from, or module:factory; with use_embeddings, the tower that "
            "made the embeddings; empty: a new tower of the sizes below",
            why="tape2048 comes without a tower",
            group="Model",
        ),
    ] = ""
    tower_dim: Annotated[Count, about("width of the tower's vectors", why="small enough for a CPU")] = 128
    tower_layers: Annotated[Count, about("layers of the tower", why="small enough for a CPU")] = 2
    tower_heads: Annotated[
        Count, about("attention heads of a layer; divides tower_dim", why="32 dimensions for each head")
    ] = 4
    tower_ffn: Annotated[
        Count, about("width of a layer's feed-forward part", why="small enough for a CPU")
    ] = 256
    tower_dropout: Annotated[
        Share,
        about(
            "share of the tower's activations left out in training",
            why="a small tower on many games does not overfit",
            flag="",
        ),
    ] = 0.0
    hidden: Annotated[
        Count | None,
        about(
            "width of the head's hidden layer; off: a linear probe",
            why="a probe shows what the tower has learned",
            none="off",
        ),
    ] = None
    dropout: Annotated[
        Share,
        about("share of the hidden layer left out in training", why="a small head does not overfit", flag=""),
    ] = 0.0
    ordered: Annotated[
        bool, about("force P(>= T) not to increase with T", why="a plain head nearly learns that", flag="")
    ] = False
    pos_weight: Annotated[
        str,
        about(
            "weight of true labels in the loss: none, dataset (false rows per true row), or a number for "
            "each threshold; its shift of the logits is removed from written critics",
            why="it does not improve the ranking, and calibration needs none",
            group="Training",
            form="none, dataset, or a number for each threshold, separated by commas or spaces",
            many=True,
            pattern=r"^(none|dataset|[0-9][0-9.eE+-]*( [0-9][0-9.eE+-]*)*)$",
            flag="",
        ),
    ] = "none"
    batch_rows: Annotated[
        Count,
        about(
            "rows of a batch, on each rank; 4096 suits a head on embeddings, whose steps are short",
            why="about a hundred batches an epoch",
        ),
    ] = 1024
    pool_rows: Annotated[
        Count | None,
        about(
            "draw batches from a pool of so many rows in memory, read in chunks",
            why="rows in memory or in the cache are served in any order",
            none="off",
        ),
    ] = None
    pool_sessions: Annotated[
        Count | None,
        about(
            "with pool_rows, number of sessions that pools are read from at a time. The cache must hold "
            "twice as many",
            why="a local directory needs no cache",
            none="off",
        ),
    ] = None
    epochs: Annotated[Count, about("passes over the runs", why="early stopping ends sooner")] = 10
    steps_max: Annotated[
        Count | None, about("end after this many optimizer steps", why="`epochs` sets the length", none="off")
    ] = None
    learning_rate: Annotated[
        float, about("highest learning rate of AdamW", why="usual for small encoders", gt=0)
    ] = 1e-3
    warmup_steps: Annotated[
        int,
        about(
            "steps over which the learning rate rises. Then a half cosine takes it to 0",
            why="AdamW's first steps are large",
            ge=0,
            flag="",
        ),
    ] = 100
    eval_steps: Annotated[
        Count | None,
        about("steps from one validation to the next", why="once in each epoch", none="epoch", flag=""),
    ] = None
    patience: Annotated[
        Count | None,
        about(
            "end after so many validations in a row without a lower loss",
            why="later ones are hardly better",
            none="off",
            flag="",
        ),
    ] = 5
    log_steps: Annotated[
        Count, about("steps from one line of metrics.jsonl to the next", why="a smooth curve", flag="")
    ] = 20
    checkpoint_steps: Annotated[
        Count,
        about(
            "steps between checkpoints; each validation also writes a checkpoint",
            why="a crash costs a minute or two",
            flag="",
        ),
    ] = 200
    device: Annotated[
        str,
        about(
            "auto (CUDA if available), cpu, cuda or cuda:N",
            why="uses a GPU if there is one",
            group="Machine and tracking",
            form="auto, cpu, cuda or cuda:N",
            pattern=r"^[a-z]+(:[0-9]+)?$",
        ),
    ] = "auto"
    threads: Annotated[
        int,
        about(
            "threads of PyTorch on a CPU; 0: the number of cores, or 1 with use_embeddings",
            why="a head's step is too short for several threads",
            ge=0,
            le=1024,
        ),
    ] = 0
    bf16: Annotated[
        bool,
        about("on CUDA, run the tower under bfloat16 autocast", why="faster, and precise enough", flag=""),
    ] = True
    tensorboard: Annotated[
        bool,
        about(
            "also write metrics for TensorBoard (pip install tensorboard)",
            why="metrics.jsonl is always written",
            flag="",
        ),
    ] = False
    wandb_project: Annotated[
        str,
        about(
            "project of Weights & Biases that also receives the metrics (pip install wandb); empty: none",
            why="nothing is sent without consent",
            flag="",
        ),
    ] = ""

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Numbers of ``pos_weight``; None for ``none`` and ``dataset``."""
        if self.pos_weight in {"none", "dataset"}:
            return None
        return tuple(float(word) for word in self.pos_weight.split())

    def check(self) -> None:
        """Raise ConfigError for settings that are valid one by one but contradict each other."""
        super().check()
        try:
            weights = self.weights or (1.0,) * len(self.tiles)
        except ValueError as error:
            raise ConfigError(f"pos_weight: found {self.pos_weight!r}, expected numbers ({error})") from error
        tiles = counted(len(self.tiles), "threshold")
        checks = (
            (
                "tower_dim",
                self.tower_dim % self.tower_heads == 0,
                f"a multiple of tower_heads ({self.tower_heads})",
            ),
            ("learning_rate", self.learning_rate <= _LEARNING_RATE_MAX, f"at most {_LEARNING_RATE_MAX:g}"),
            ("pool_sessions", self.pool_sessions is None or self.pool_rows, "none without pool_rows"),
            ("dropout", self.dropout < 1, "below 1"),
            ("tower_dropout", self.tower_dropout < 1, "below 1"),
            (
                "pos_weight",
                len(weights) == len(self.tiles) and all(0 < w < 1e12 for w in weights),
                f"a positive number for each of {tiles}",
            ),
        )
        for name, holds, expected in checks:
            if not holds:
                raise ConfigError(f"{name}: found {getattr(self, name)!r}, expected {expected}")


class NTupleCriticConfig(LearningConfig, frozen=True, kw_only=True):
    """The settings of the training of an n-tuple critic by temporal differences.

    Example:
        >>> from tape2048.critic.ntuple import NTupleCriticConfig
        >>> NTupleCriticConfig(stages="8192").layout.stage_count
        2
    """

    removed = MappingProxyType({"weight_step": "a stored weight has the unit 1/32"})

    player: Annotated[
        str,
        about(
            "built-in player that plays the games, which are not recorded; empty: read the games of `data`",
            why="recorded games can be inspected and learned from again",
        ),
    ] = ""
    games: Annotated[
        Count | None,
        about(
            "number of games that `player` plays",
            why="only `player` needs it: 15,000 games make a good critic",
            none="off",
        ),
    ] = None
    tuples: Annotated[
        str,
        about(
            "the tuples: cells as hexadecimal digits, row-major, 0 top left. Each counts in 8 symmetries",
            why="four 5-tuples; with 6 cells, 15,000 games visit an entry too seldom",
            group="Model",
            form="groups of 4 to 6 digits, separated by commas or spaces",
            many=True,
            pattern=r"^[0-9a-fA-F]{4,6}( [0-9a-fA-F]{4,6})*$",
        ),
    ] = "01234 45678 01245 45689"
    stages: Annotated[
        str,
        about(
            "the tiles, or sums of different tiles, at which a new stage, with its own tables, starts",
            why="the same pattern means more on a board with large tiles",
            form="tiles or sums in ascending order, separated by commas or spaces: 12288 starts with 8192 "
            "and 4096",
            many=True,
            pattern=r"^([0-9]{1,5}( [0-9]{1,5})*)?$",
        ),
    ] = "4096 8192 16384"
    stride: Annotated[
        Count,
        about(
            "learn from one row in so many of a game, starting with its first",
            why="neighbouring boards are almost the same, and half a byte a row stays in memory",
            group="Training",
        ),
    ] = 16
    decay: Annotated[
        Share,
        about(
            "lambda of the lambda-return, per row that is learned from",
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
        Count, about("passes over the games. The rate falls to 0 over them", why="more than 12 gave little")
    ] = 12
    patience: Annotated[
        Count | None,
        about(
            "end after so many validations in a row without a lower loss, and keep the best critic",
            why="outcomes of about a hundred games are too few to choose by",
            none="off",
            flag="",
        ),
    ] = None
    threads: Annotated[
        int,
        about(
            "threads that learn into the same tables, without locks; 0: the number of cores",
            why="one is reproducible; several learn as much from a row",
            group="Machine and file",
            ge=0,
            le=256,
        ),
    ] = 0
    checkpoint_s: Annotated[
        Positive, about("seconds from one checkpoint to the next", why="the most that a crash costs", flag="")
    ] = 300.0
    prune_below: Annotated[
        float,
        about(
            "replace each weight with less squared error than this by the mean of its table",
            why="0.1 halves the file; this costs accuracy with 15,000 games, and none with 100,000",
            ge=0,
            flag="",
        ),
    ] = 0.0

    @property
    def layout(self) -> NetworkLayout:
        return NetworkLayout.of(self.tuples.split(), [int(tile) for tile in self.stages.split()])

    @property
    def thread_count(self) -> int:
        return self.threads or available_cores()

    def check(self) -> None:
        """Raise ConfigError for settings that are valid one by one but contradict each other."""
        super().check()
        if self.tiles[-1] > TOP_TILE:
            raise ConfigError(f"thresholds: found {self.tiles[-1]}, expected tiles up to {TOP_TILE}")
        _ = self.layout
        if bool(self.player) != (self.games is not None):
            raise ConfigError(
                f"player: found {self.player!r} beside games = {self.games}, expected both or none",
                hint="pass both, such as --player ntuple --games 15k",
            )
        if self.player and (column := self.targets or self.weight):
            found = f"player: found {self.player!r} beside the column {column!r}, expected only one setting"
            raise ConfigError(found, hint="Record the games: unrecorded games have no columns.")


#: Configurations in the package. Each is the configuration of the shipped critic of the same name.
PRESETS = ("default",)


def preset_path(name: str) -> Path:
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}", hint=f"one of: {', '.join(PRESETS)}")
    return Path(str(importlib.resources.files(__package__) / "ntuple/presets" / f"{name}.toml"))
