"""The recorder's settings: one field each, with its default, its bounds, and the reason for them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from tape2048.base.resources import available_cores
from tape2048.settings.fields import Count, NonNegative, Positive, about

_PathText = Annotated[str, msgspec.Meta(pattern=r"^[^~].*$")]
#: A game's id has its number within a lease in the low bits, and the lease above them. Bit 63 stays free:
#: SQLite's ids are signed, and the ids of a critic's rollouts have it set.
NUMBER_BITS = 40
LEASE_MAX = (1 << 23) - 1

# The tag is part of a session's name: characters of SESSION_NAME, at a length that leaves room in 255 bytes.
_Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of ``tape2048 record``. Megabytes are 10**6 bytes."""

    player: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][!-~]*$")],
        about(
            "the player that chooses the moves, with parameters if any: `ntuple:look_below=4`",
            why="strong at over half a million moves a second a core; its network is included",
            form="a player's name, without spaces",
            group="Player and model",
        ),
    ] = "ntuple"
    player_args: Annotated[
        dict[str, int | float | str | bool],
        about(
            "the player's parameters, as a table in the file; elsewhere they follow the player's name",
            why="each player has its own defaults",
        ),
    ] = {}
    lanes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1 << 20)],
        about(
            "games that a worker plays in lockstep for a batched player (`python:...`)",
            why="batches large enough to use a processor fully; a lane costs a few kilobytes",
        ),
    ] = 4096
    sampling: Annotated[
        dict[str, int | float | str | bool],
        about(
            "how a batched player's scores become moves: method, temperature, top_k, top_p, epsilon, gates",
            why="argmax: the player's own choice",
        ),
    ] = {}
    model_dir: Annotated[
        _PathText | None,
        about(
            "a directory whose newest checkpoint plays; newer ones are loaded during play; empty: none",
            why="fixed weights come with `player_args`",
            none="",
            form="a path (~ is not expanded)",
        ),
    ] = None
    model_files: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^/]+$")],
        about(
            "pattern of the checkpoints' file names in `model_dir`",
            why="a trainer's other files (optimizer, logs) are no models",
            form="a pattern for file names",
        ),
    ] = "*.safetensors"
    model_tag: Annotated[
        _Tag | None,
        about(
            "tag in the sessions' names, `<start>_model=<model_tag>`; empty: the player's name",
            why="a session's name identifies its player",
            none="",
            form="a letter or digit, then at most 99 letters, digits or . _ + -",
        ),
    ] = None
    out_dir: Annotated[
        _PathText,
        about(
            "the directory that receives the sessions",
            why="in the working directory; `.gitignore` lists it",
            group="Recording",
            form="a path (~ is not expanded)",
        ),
    ] = "selfplay"
    instance: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
        about(
            "this recorder's name; a second one with the same name and `out_dir` is refused",
            why="one recorder a directory is the common case",
            form="1 to 64 letters, digits, _ or -",
        ),
    ] = "default"
    workers: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1024)],
        about(
            "worker processes; 0: one for each core that this process may use (affinity, cgroup quota)",
            why="play is CPU-bound: fewer workers leave cores idle, more of them share cores",
        ),
    ] = 0
    seed: Annotated[
        NonNegative | None,
        about(
            "64 bits that decide every game; random: drawn at each start and recorded",
            why="two recorders, or two starts, must not repeat the same games",
            none="random",
            le=2**64 - 1,
        ),
    ] = None
    lease: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=LEASE_MAX)],
        about(
            "which games of `seed` this recorder plays: ids from `lease` x 2**40 up, 2**40 of them",
            why="one recorder needs no other; those that share a seed need one each, to repeat no game",
        ),
    ] = 0
    rotate_steps: Annotated[
        Count,
        about(
            "rows in a session before it is published and the next one starts",
            why="280 MB (15 on tape): written and checked in seconds, and a corpus is a few hundred sessions",
        ),
    ] = 10_000_000
    rotate_s: Annotated[
        Positive | None,
        about(
            "the longest a session stays open",
            why="rows, not minutes, determine the amount of data",
            none="off",
        ),
    ] = None
    max_games: Annotated[
        Count | None,
        about(
            "end after this many recorded games",
            why="a recorder runs until it is stopped",
            none="off",
            group="Limits",
        ),
    ] = None
    max_steps: Annotated[
        Count | None, about("end after this many recorded rows", why="as `max_games`", none="off")
    ] = None
    max_wall_s: Annotated[
        Positive | None,
        about(
            "end this long after the first move",
            why="as `max_games`; compiling takes half a minute, once",
            none="off",
        ),
    ] = None
    max_ram_mb: Annotated[
        Count | None,
        about(
            "end when all processes together hold more than this",
            why="memory use is constant; a service also has its cgroup's limit",
            none="off",
        ),
    ] = None
    max_disk_mb: Annotated[
        Count | None,
        about(
            "end when the sessions in `out_dir` take more than this (`prune` makes room)",
            why="the operator decides what to keep; `min_free_mb` protects the file system",
            none="off",
        ),
    ] = None
    spool_max_mb: Annotated[
        Count | None,
        about(
            "pause while the sessions in `out_dir` take more than this, until something removes whole ones",
            why="sessions stay where they are; a fleet's agent ships them, and sets it",
            none="off",
        ),
    ] = None
    min_free_mb: Annotated[
        NonNegative,
        about(
            "space to leave free on `out_dir`'s file system; below it the recorder pauses with a warning",
            why="room for the open session's metadata, and for other programs' logs",
        ),
    ] = 256
    storage: Annotated[
        str,
        about(
            "how sessions hold their games: rows of 28 bytes, or on tape, one byte a step and 1.5 in all",
            why="`steps.npy` is read by any program; tape is for recordings of weeks, and needs this package",
            choices=("rows", "tape"),
            group="Recording",
        ),
    ] = "rows"
    sample_rate: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)],
        about(
            "keep the rows whose `step_idx` is a multiple of this; a tape keeps them all",
            why="a reader can drop rows later, but cannot restore them",
        ),
    ] = 1
    record_action: Annotated[
        bool,
        about(
            "add the chosen move to each row: 29 bytes instead of 28; a tape has it anyway",
            why="a critic needs the boards only",
        ),
    ] = False
    block_rows: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=2**26)] | None,
        about(
            "most rows that a worker buffers before it writes them; auto: 262,144, or 1,048,576 on tape",
            why="2 MB a worker (rows wait as boards; 7 MB in lanes; 1 MB on tape), and any game fits: "
            "each move adds at least 2 to a sum of at most 16 x 32768",
            none="auto",
        ),
    ] = None
    flush_s: Annotated[
        Positive,
        about(
            "the longest a finished game stays in memory only, where SIGKILL loses it",
            why="at most a minute of play is at risk, and a write each minute has no measurable cost",
        ),
    ] = 60.0
    drain_timeout_s: Annotated[
        Annotated[float, msgspec.Meta(ge=0)],
        about(
            "the longest that games in play may continue after SIGTERM",
            group="Service and log",
            why="longer than a game of most players, shorter than systemd's 90 s",
        ),
    ] = 60.0
    log_interval_s: Annotated[
        Positive,
        about(
            "without a terminal: seconds from one progress line to the next",
            why="2,880 lines a day are still readable",
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        about(
            "the lowest level of log lines to write",
            why="one line each `log_interval_s` and one a session are readable",
            choices=("info", "warning", "error"),
        ),
    ] = "info"
    log_format: Annotated[
        str,
        about(
            "the form of log lines; under systemd, text lines carry their priority for the journal",
            why="people read logs more often than programs do",
            choices=("text", "json"),
        ),
    ] = "text"
    worker_silence_s: Annotated[
        Positive,
        about(
            "longest time without progress of a worker before it is replaced",
            why="over a thousand times a worker's reporting interval",
        ),
    ] = 60.0
    metrics_listen: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$")] | None,
        about(
            "address that serves Prometheus metrics over HTTP; needs the extra `metrics`",
            why="no port is opened by default",
            none="off",
            form="HOST:PORT, an IPv6 address in brackets",
        ),
    ] = None
    metrics_textfile: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^~].*\.prom$")] | None,
        about(
            "a file for node_exporter's textfile collector, written every 15 s; needs the extra `metrics`",
            why="the collector's directory is known to its operator only",
            none="off",
            form="a path that ends in .prom (~ is not expanded)",
        ),
    ] = None

    @property
    def tag(self) -> str:
        """Return ``model_tag``, or the tag derived from the player's name."""
        if self.model_tag is not None:
            return self.model_tag
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.player)[:100]

    @property
    def rows_buffered_max(self) -> int:
        """Return the most rows that a worker buffers: ``block_rows``, and at most a session's."""
        auto = 1_048_576 if self.storage == "tape" else 262_144
        return min(self.block_rows or auto, self.rotate_steps)

    @property
    def worker_count(self) -> int:
        """Return ``workers``; for 0, the cores that this process may use now."""
        return self.workers or available_cores()
