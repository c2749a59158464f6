"""The recorder's settings: one field each, with its default, its bounds, and why it has them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from tape2048.base.resources import available_cores
from tape2048.settings.fields import about

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Megabytes = Annotated[int, msgspec.Meta(ge=1)]
# The tag is part of a session's name: what SESSION_NAME takes, at a length that leaves room in 255 bytes.
Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that ``tape2048 record`` can be told. Megabytes are 10**6 bytes."""

    player: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][!-~]*$")],
        about(
            "what chooses the moves; parameters may follow the name, as in `ntuple:look_below=4`",
            why="strong at over half a million moves a second a core; its network ships",
            form="a player's name, without spaces",
        ),
    ] = "ntuple"
    player_args: Annotated[
        dict[str, int | float | str | bool],
        about(
            "the player's parameters, as a table in the file; elsewhere they follow the player's name",
            why="each player has defaults of its own",
        ),
    ] = {}
    lanes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1 << 20)],
        about(
            "games that a worker plays in lockstep for a batched player (`python:...`)",
            why="large enough that a network's batches fill a processor; a lane costs a few kilobytes",
        ),
    ] = 4096
    sampling: Annotated[
        dict[str, int | float | str | bool],
        about(
            "how a batched player's scores become moves: method, temperature, top_k, top_p, epsilon, gates",
            why="argmax: the player as it is",
        ),
    ] = {}
    inference: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(worker|server)$")],
        about(
            "where a batched player computes: in each worker, or in one process for all",
            why="one model to a core on a CPU; `server` is for many workers on one GPU",
            form="`worker` or `server`",
        ),
    ] = "worker"
    model_dir: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^~].*$")] | None,
        about(
            "a directory whose newest checkpoint plays; a newer one is taken while games go on; empty: none",
            why="weights come with `player_args` where nobody trains them meanwhile",
            none="",
            form="a path (nobody expands ~ here)",
        ),
    ] = None
    model_files: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^/]+$")],
        about(
            "which files in `model_dir` are checkpoints, as a pattern",
            why="what else a trainer leaves there (optimizer, logs) is no model",
            form="a pattern of a file's name",
        ),
    ] = "*.safetensors"
    model_tag: Annotated[
        Tag | None,
        about(
            "what sessions are named after: `<start>_model=<model_tag>`; empty: the player's name",
            why="a session's name says what played",
            none="",
            form="a letter or digit, then at most 99 letters, digits or . _ + -",
        ),
    ] = None
    out_dir: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^~].*$")],
        about(
            "the directory that receives the sessions",
            why="beside where you work; `.gitignore` has it",
            form="a path (nobody expands ~ here)",
        ),
    ] = "selfplay"
    instance: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
        about(
            "this recorder's name; a second one with the same name and `out_dir` is refused",
            why="one recorder to a directory is the common case",
            form="1 to 64 letters, digits, _ or -",
        ),
    ] = "default"
    workers: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1024)],
        about(
            "processes that play; 0: one for each core that this process may use (affinity, cgroup quota)",
            why="play is bound by the CPU: fewer leave cores idle, more only take turns",
        ),
    ] = 0
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        about(
            "64 bits that decide every game; random: drawn at each start and recorded",
            why="two recorders, or two starts, must not play the same games",
            none="random",
            le=2**64 - 1,
        ),
    ] = None
    rotate_steps: Annotated[
        Count,
        about(
            "rows in a session before it is published and the next one starts",
            why="280 MB: written and checked in seconds, and a few hundred of them hold a corpus",
        ),
    ] = 10_000_000
    rotate_s: Annotated[
        Seconds | None,
        about(
            "the longest a session stays open",
            why="rows, not minutes, decide how much there is to load",
            none="off",
        ),
    ] = None
    max_games: Annotated[
        Count | None,
        about(
            "end after this many recorded games", why="a recorder runs until it is told to stop", none="off"
        ),
    ] = None
    max_steps: Annotated[
        Count | None,
        about("end after this many recorded rows", why="as `max_games`", none="off"),
    ] = None
    max_wall_s: Annotated[
        Seconds | None,
        about("end after this long", why="as `max_games`", none="off"),
    ] = None
    max_ram_mb: Annotated[
        Megabytes | None,
        about(
            "end when all processes together hold more than this",
            why="memory is flat; a service has the cgroup's limit besides",
            none="off",
        ),
    ] = None
    max_disk_mb: Annotated[
        Megabytes | None,
        about(
            "end when the sessions in `out_dir` take more than this (`prune` makes room)",
            why="what the sessions are worth is the operator's to say; `min_free_mb` guards the rest",
            none="off",
        ),
    ] = None
    min_free_mb: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        about(
            "space to leave free on `out_dir`'s file system; below it the recorder pauses and says so",
            why="room to finish the open session's metadata, and for everybody else's logs",
        ),
    ] = 256
    sample_rate: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)],
        about(
            "keep the rows whose `step_idx` is a multiple of this",
            why="a reader can leave rows out later; nobody can bring them back",
        ),
    ] = 1
    record_action: Annotated[
        bool,
        about(
            "add the chosen move to each row: 29 bytes in place of 28",
            why="a critic is trained on boards alone",
        ),
    ] = False
    block_rows: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=2**26)],
        about(
            "rows that a worker buffers at most before it writes them",
            why="2 MB a worker (rows wait as boards; 7 MB in lanes), and any game fits: "
            "each move adds at least 2 to a sum of at most 16 x 32768",
        ),
    ] = 262_144
    flush_s: Annotated[
        Seconds,
        about(
            "the longest a finished game may stay in memory only, where SIGKILL can take it",
            why="a minute of play at most is at risk, and a write each minute costs nothing that shows",
        ),
    ] = 60.0
    drain_timeout_s: Annotated[
        Annotated[float, msgspec.Meta(ge=0)],
        about(
            "the longest that games in play may go on after SIGTERM",
            why="longer than a game of most players, shorter than the 90 s that systemd waits",
        ),
    ] = 60.0
    log_interval_s: Annotated[
        Seconds,
        about(
            "without a terminal: seconds from one progress line to the next",
            why="2,880 lines a day can be read",
        ),
    ] = 30.0

    log_level: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(info|warning|error)$")],
        about(
            "the least important lines of the log that are written",
            why="a line each `log_interval_s` and one a session can be read",
            form="info, warning or error",
        ),
    ] = "info"
    log_format: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(text|json)$")],
        about(
            "the form of log lines; under systemd, lines of text carry their priority for the journal",
            why="people read it more often than programs",
            form="text or json",
        ),
    ] = "text"
    worker_silence_s: Annotated[
        Seconds,
        about(
            "how long a worker or the inference process may make no progress; then it is ended and replaced",
            why="a thousand times the slice of play after which a worker reports",
        ),
    ] = 60.0
    metrics_listen: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$")] | None,
        about(
            "where Prometheus asks for metrics over HTTP; needs the extra `metrics`",
            why="nothing listens unasked",
            none="off",
            form="HOST:PORT, an IPv6 address in brackets",
        ),
    ] = None
    metrics_textfile: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^~].*\.prom$")] | None,
        about(
            "a file for node_exporter's textfile collector, written every 15 s; needs the extra `metrics`",
            why="whoever has a collector knows its directory",
            none="off",
            form="a path that ends in .prom (nobody expands ~ here)",
        ),
    ] = None

    @property
    def tag(self) -> str:
        """``model_tag``, or the one derived from the player's name."""
        if self.model_tag is not None:
            return self.model_tag
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.player)[:100]

    @property
    def worker_count(self) -> int:
        """``workers``, with 0 replaced by the cores that this process may use now."""
        return self.workers or available_cores()
