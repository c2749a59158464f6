"""The settings of ``tape2048 record`` and their loading.

:class:`RecorderConfig` declares every setting with its default, bounds and reason. :func:`load_config` reads
and checks the values, and keeps the origin of each.

Precedence: flag, environment (``TAPE2048_<NAME>``), file, default. The file is TOML, named by ``--config`` or
``TAPE2048_CONFIG``. No other place is searched. An unknown name is an error in every source. The error names
the nearest known setting.

A source that sets ``player`` also sets ``player_args``: to the parameters behind the name
(``expectimax:depth=2``), to its ``[player_args]`` table if it is a file, or to nothing. So the parameters of
one player never reach another.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import msgspec

from tape2048.base.resources import available_cores
from tape2048.base.settings import (
    DEFAULT,
    ENV_PREFIX,
    Count,
    Given,
    NonNegative,
    Origin,
    Positive,
    Setting,
    about,
    from_file,
    from_flags,
    located,
    misplaced,
    read_given,
    read_value,
    refuse,
    settings_of,
    unknown_key,
)
from tape2048.base.text import counted, read_plain
from tape2048.errors import ConfigError
from tape2048.files.locks import READERS_LOCK
from tape2048.players import public_player, split_text
from tape2048.session.layout import STEPS_BLOCK_ROWS, TAPE
from tape2048.session.public_facts import public_facts
from tape2048.session.tape_layout import TAPE_BLOCK_ROWS
from tape2048_recorder.players.options import EXEC, REGISTRY, check_player, is_batched, takes_text
from tape2048_recorder.players.sampling import read_sampling
from tape2048_recorder.retention import LIMITS, RETENTION, read_retention

_PathText = Annotated[str, msgspec.Meta(pattern=r"^[^~].*$")]
#: The bits of a game's id above ``NUMBER_BITS`` are the lease. Bit 63 stays free: SQLite's ids are signed,
#: and this bit marks the ids of rollouts.
LEASE_MAX = (1 << 23) - 1

# The tag is part of a session's name: SESSION_NAME allows these characters, and a name has at most 255 bytes.
_Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]

#: The function that finds the calibration of a player's values. It reads the network's file, so it is
#: imported only where columns are recorded.
OWN_CALIBRATION = "tape2048.ntuple.calibrated_network:own_calibration"


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of ``tape2048 record``. Megabytes are 10**6 bytes."""

    removed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"inference": "every worker calls its batched player itself"}
    )

    player: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][!-~]*|exec:[ -~]+)$")],
        about(
            "the player that chooses the moves, with parameters if any: `ntuple:look=4`",
            why="reaches 32768 in 29% of its games, at 0.8 million moves per second per core",
            form="a player's name, without spaces, or exec:COMMAND",
            group="Player and model",
        ),
    ] = "ntuple"
    player_args: Annotated[
        dict[str, int | float | str | bool],
        about(
            "parameters of the player, as a table of the file; in a flag or variable, write them behind the "
            "player's name",
            why="every player has defaults",
        ),
    ] = {}
    lanes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1 << 20)],
        about(
            "games that each worker plays at once with a batched player (`python:...`, `exec:...`); an "
            "engine can lower it",
            why="batches large enough to use a processor fully. A game takes a few kilobytes",
        ),
    ] = 4096
    sampling: Annotated[
        dict[str, int | float | str | bool],
        about(
            "how moves are drawn from a batched player's scores: method, temperature, top_k, top_p, epsilon, "
            "gates",
            why="argmax: play the move with the highest score",
        ),
    ] = {}
    model_dir: Annotated[
        _PathText | None,
        about(
            "directory of checkpoints for a batched player: the newest plays, and newer ones are loaded "
            "while recording; empty: none",
            why="most players have fixed weights, named in `player_args`",
            none="",
            form="a path (~ is not expanded)",
        ),
    ] = None
    model_files: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^/]+$")],
        about(
            "file names of the checkpoints in `model_dir`",
            why="trainers also write optimizer states and logs there",
            form="a glob pattern without /",
            flag="",
        ),
    ] = "*.safetensors"
    model_tag: Annotated[
        _Tag | None,
        about(
            "tag in the sessions' names, `<start>_model=<model_tag>`; empty: the player's name",
            why="a session's name then shows its player",
            none="",
            form="a letter or digit, then at most 99 letters, digits or . _ + -",
        ),
    ] = None
    out_dir: Annotated[
        _PathText,
        about(
            "the directory that receives the sessions",
            why="a directory in the working directory",
            group="Recording",
            form="a path (~ is not expanded)",
            flag="--out",
        ),
    ] = "selfplay"
    instance: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
        about(
            "this recorder's name. A second recorder with the same name and `out_dir` does not start",
            why="most directories have one recorder",
            form="1 to 64 letters, digits, _ or -",
        ),
    ] = "default"
    workers: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1024)],
        about(
            "worker processes; 0: the number of cores that this process may use (affinity, cgroup quota)",
            why="play is CPU-bound: fewer workers leave cores idle, and more compete for them",
        ),
    ] = 0
    seed: Annotated[
        NonNegative | None,
        about(
            "seed of all games; random: drawn at each start, and recorded in the sessions",
            why="two recorders never play the same games",
            none="random",
            le=2**64 - 1,
        ),
    ] = None
    lease: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=LEASE_MAX)] | None,
        about(
            "range of game ids to play: lease L covers L x 2**40 to (L + 1) x 2**40 - 1; auto: a lease that "
            "no other recorder of the store `to` has",
            why="recorders that share a seed need different leases, so that no game is repeated",
            none="auto",
        ),
    ] = 0
    start_from: Annotated[
        _PathText | None,
        about(
            "start games from boards of this file (as for `player eval --from`), session or directory of "
            "sessions, drawn by each game's seed; empty: start with two tiles",
            why="most users want whole games",
            none="",
            form="a path (~ is not expanded)",
            flag="--from",
        ),
    ] = None
    start_where: Annotated[
        str | None,
        about(
            "if `start_from` names sessions: use only games that match this condition, as with `where` in "
            "the SDK; empty: all games",
            why="all games are of interest",
            none="",
            form="a condition in SQL",
            flag="--where",
        ),
    ] = None
    start_rows_where: Annotated[
        str | None,
        about(
            "the board of each game to start from, required if `start_from` names sessions: the first that "
            "matches this condition, as with `rows_where` in the SDK (`board_highest_tile >= 16384`)",
            why="which boards are interesting depends on the question",
            none="",
            form="a condition in SQL",
            flag="--rows-where",
        ),
    ] = None
    rotate_steps: Annotated[
        Count,
        about(
            "rows after which a session is published and the next one starts",
            why="280 MB (15 MB on tape): written and checked in seconds, and 1e9 rows are 100 sessions",
        ),
    ] = 10_000_000
    rotate_s: Annotated[
        Positive | None,
        about(
            "longest time that a session stays open",
            why="`rotate_steps` already limits a session",
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
        Count | None,
        about("end after this many recorded rows", why="a recorder runs until it is stopped", none="off"),
    ] = None
    max_wall_s: Annotated[
        Positive | None,
        about(
            "end this long after the first move. Compiling does not count",
            why="a recorder runs until it is stopped",
            none="off",
        ),
    ] = None
    max_ram_mb: Annotated[
        Count | None,
        about(
            "limit of the resident memory of all processes together: the open session is published at 90% of "
            "it, and the recorder ends above it",
            why="memory use stays constant, and the systemd unit sets a limit",
            none="off",
            flag="",
        ),
    ] = None
    max_disk_mb: Annotated[
        Count | None,
        about(
            "end when the sessions in `out_dir` take more than this; `tape2048 prune` removes old sessions",
            why="the operator decides what to keep; `min_free_mb` protects the file system",
            none="off",
            flag="",
        ),
    ] = None
    to: Annotated[
        _PathText | None,
        about(
            "ship published sessions to this store, and remove them from `out_dir`: a directory, "
            "s3://bucket/prefix, gs://... or az://...; empty: keep them",
            why="one machine needs no store",
            none="",
            form="an address, or a path (~ is not expanded)",
        ),
    ] = None
    spool_max_mb: Annotated[
        Count | None,
        about(
            "pause while the sessions in `out_dir` take more than this; with `to`, off means four sessions",
            why="useful only if sessions are removed while it records",
            none="off",
        ),
    ] = None
    min_free_mb: Annotated[
        NonNegative,
        about(
            "space to leave free on `out_dir`'s file system. With less, the recorder pauses and warns",
            why="room for the open session's metadata, and for other programs' logs",
            flag="",
        ),
    ] = 256
    storage: Annotated[
        str,
        about(
            "storage format: `rows` (28 bytes per row) or `tape` (about 1.5 bytes per row)",
            why="any program that reads NumPy files can read `rows`; only this package reads `tape`",
            choices=("rows", "tape"),
            group="Recording",
        ),
    ] = "rows"
    sample_rate: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)],
        about(
            "record only rows whose `step_idx` is a multiple of this; must be 1 on tape",
            why="a reader can drop rows later, but cannot restore them",
        ),
    ] = 1
    record_action: Annotated[
        bool,
        about(
            "add the chosen move to each row, which then takes 29 bytes instead of 28. A tape always has it",
            why="a critic needs only the boards",
        ),
    ] = False
    columns: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(values|loss)( (values|loss))*$")] | None,
        about(
            "columns to record from the player's search: `values` (of the four moves) and `loss`, defined as "
            "by `tape2048 annotate`; empty: none",
            why="both take 20 bytes per row, and `tape2048 annotate` can add them later",
            none="",
            form="values, loss or both, separated by a comma",
            many=True,
        ),
    ] = None
    block_rows: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=2**26)] | None,
        about(
            f"most rows that a worker buffers before it writes them; auto: {STEPS_BLOCK_ROWS:,}, or "
            f"{TAPE_BLOCK_ROWS:,} on tape",
            why="takes 2 MB per worker (7 MB with a batched player, 1 MB on tape) and holds the longest "
            "possible game",
            none="auto",
            flag="",
        ),
    ] = None
    flush_s: Annotated[
        Positive,
        about(
            "longest time that a finished game stays in memory before it is written. SIGKILL loses unwritten "
            "games",
            why="at most a minute of play is at risk, and a write every minute has no measurable cost",
            flag="",
        ),
    ] = 60.0
    drain_timeout_s: Annotated[
        Annotated[float, msgspec.Meta(ge=0)],
        about(
            "time that games in progress have to finish after SIGTERM or a limit",
            group="Service and log",
            why="longer than a game of most players, and shorter than the 90 s that systemd waits by default",
        ),
    ] = 60.0
    log_interval_s: Annotated[
        Positive,
        about(
            "seconds between progress lines where the output is no terminal",
            why="few enough lines to read: 2,880 a day",
            flag="",
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        about(
            "the lowest level of log lines to write",
            why="few lines: one every `log_interval_s`, and one per session",
            choices=("info", "warning", "error"),
            flag="",
        ),
    ] = "info"
    log_format: Annotated[
        str,
        about(
            "format of log lines; under systemd, text lines carry their priority for the journal",
            why="people read logs more often than programs do",
            choices=("text", "json"),
            flag="",
        ),
    ] = "text"
    worker_silence_s: Annotated[
        Positive,
        about(
            "time without progress after which a worker is replaced",
            why="over a thousand times a worker's reporting interval",
            flag="",
        ),
    ] = 60.0
    metrics_listen: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$")] | None,
        about(
            "address that serves Prometheus metrics over HTTP; needs the extra `metrics`",
            why="a recorder opens a port only if it is told to",
            none="off",
            form="HOST:PORT, an IPv6 address in brackets",
            flag="",
        ),
    ] = None
    metrics_textfile: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[^~].*\.prom$")] | None,
        about(
            "a file for node_exporter's textfile collector, written every 15 s; needs the extra `metrics`",
            why="the collector's directory differs from machine to machine",
            none="off",
            form="a path that ends in .prom (~ is not expanded)",
            flag="",
        ),
    ] = None

    @property
    def tag(self) -> str:
        """Return ``model_tag``, or the tag derived from the player's name."""
        if self.model_tag is not None:
            return self.model_tag
        name = self.player
        if name == EXEC:
            name = f"{EXEC}-{Path(str(self.player_args['command']).split()[0]).name}"
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", public_player(name, {})[0])[:100]

    @property
    def all_player_args(self) -> dict[str, int | float | str | bool]:
        """Return ``player_args`` with defaults; ConfigError for an unknown player or parameter."""
        return check_player(self.player, self.player_args)

    @property
    def rows_buffered_max(self) -> int:
        """Return the most rows that a worker buffers: ``block_rows``, but at most the rows of a session."""
        usual = TAPE_BLOCK_ROWS if self.storage == TAPE else STEPS_BLOCK_ROWS
        return min(self.block_rows or usual, self.rotate_steps)

    @property
    def worker_count(self) -> int:
        """Return ``workers``; for 0, the cores that this process may use now."""
        return self.workers or available_cores()


# Loading.

#: Settings that a session records only if they are set, so that older configurations keep their hash.
_LATER = frozenset({"start_from", "start_where", "start_rows_where", "columns"})
#: Settings that no file records: an address can hold a password.
_PRIVATE = frozenset({"to"})

#: The environment variable that names the file.
CONFIG_ENV = ENV_PREFIX + "CONFIG"

#: The environment variable in which a unit passes its ``TimeoutStopSec``, in seconds.
STOP_TIMEOUT_ENV = ENV_PREFIX + "STOP_TIMEOUT_S"

#: Variables with the prefix that are not settings. Any other variable with it is a misspelt setting.
OTHER_ENV = frozenset({CONFIG_ENV, STOP_TIMEOUT_ENV})

#: Bytes of a row of ``steps.npy`` with its action. Not computed: the module of the layout would load NumPy.
ROW_BYTES_MAX = 29

#: Bytes of a row in the buffer of a compiled player: its board and its action.
BUFFERED_BYTES_MAX = 9

#: Bytes of a row's values of the moves and of its loss.
_COLUMN_BYTES = {"values": 16, "loss": 4}

#: Bytes per row of a session on tape: one for the step, and a share of an anchor.
TAPE_ROW_BYTES = 1.5


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, the origin of each of its values, and the file that was read, if any."""

    config: RecorderConfig
    origins: dict[str, Origin]
    path: str | None = None
    sha256: str | None = None  # of the file


def load_config(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    path: Path | str | None = None,
    text: bytes | None = None,
) -> Loaded:
    """Merge flags, environment and file into a configuration; ``text`` is the content of a file elsewhere."""
    loaded = merge_sources(flags, env, path, text)
    with located(loaded.origins["sampling"]):
        read_sampling(loaded.config.sampling)
    for name, problem, hint in _conflicts(loaded.config, loaded.origins, env):
        refuse(problem, name, loaded.origins[name], hint=hint)
    return loaded


def merge_sources(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    path: Path | str | None = None,
    text: bytes | None = None,
) -> Loaded:
    """Merge as :func:`load_config`, without the check for conflicting settings."""
    if path is None and CONFIG_ENV in env:
        if not env[CONFIG_ENV]:
            raise ConfigError(
                f"{CONFIG_ENV}: found '', expected the path of a TOML file",
                hint=f"Unset {CONFIG_ENV}, or set it to a path.",
            )
        path = Path(env[CONFIG_ENV])
    values: dict[str, Any] = {}
    origins = dict.fromkeys(settings_of(RecorderConfig), DEFAULT)
    # From the lowest precedence to the highest: each source overwrites the earlier ones.
    for source in (
        [] if path is None else _from_file(path, text),
        _from_env(env),
        from_flags(RecorderConfig, flags),
    ):
        given = read_given(RecorderConfig, source, also=[RETENTION], places=LIMITS)
        for name, (value, origin) in _with_player(given).items():
            values[name], origins[name] = value, origin
    if path is None:
        return Loaded(RecorderConfig(**values), origins)
    digest = hashlib.sha256(Path(path).read_bytes() if text is None else text).hexdigest()
    return Loaded(RecorderConfig(**values), origins, str(path), digest)


def effective(config: RecorderConfig) -> dict[str, Any]:
    """Return the settings in effect; those that early versions lacked only if they are set."""
    settings = {**msgspec.to_builtins(config), "model_tag": config.tag}
    return {
        name: value
        for name, value in settings.items()
        if name not in _PRIVATE and (value is not None or name not in _LATER)
    }


def config_sha256(config: RecorderConfig) -> str:
    """Return the SHA-256 (hex) of the settings that a session records, as canonical JSON.

    The JSON has sorted keys and no white space, in UTF-8.
    """
    facts = public_facts(effective(config))
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    ).hexdigest()


def split_player(text: str) -> tuple[str, dict[str, int | float | str | bool] | None]:
    """Split text into a player's name and its parameters, None without parameters.

    Values of text parameters stay text even if they look like numbers: ``mix=16``, or a file called 007.

    >>> split_player("expectimax:depth=2")
    ('expectimax', {'depth': 2})
    >>> split_player("python:my.module:factory")
    ('python:my.module:factory', None)
    >>> split_player("exec:./engine --depth 3")
    ('exec', {'command': './engine --depth 3'})
    """
    name, args = split_text(text)
    return name, {
        key: value if takes_text(name, key) else read_plain(value) for key, value in args.items()
    } or None


def check_loaded_player(loaded: Loaded) -> None:
    """Raise ConfigError for an unknown player or invalid parameters, with their origin."""
    takes_args = loaded.config.player in REGISTRY and loaded.config.player_args
    with located(loaded.origins["player_args" if takes_args else "player"]):
        _ = loaded.config.all_player_args


def buffer_mb(config: RecorderConfig) -> float:
    """Return a worker's largest buffer in MB: boards, rows (batched players), or bytes on tape."""
    row_bytes = ROW_BYTES_MAX if is_batched(config.player) else BUFFERED_BYTES_MAX
    row_bytes = 1 if config.storage == "tape" else row_bytes
    return config.rows_buffered_max * (row_bytes + (20 if config.columns else 0)) / 1e6


def row_bytes(config: RecorderConfig) -> float:
    """Return the bytes that a recorded row takes in a published session, without its metadata."""
    rows = TAPE_ROW_BYTES if config.storage == "tape" else 28 + config.record_action
    return rows + columns_row_bytes(config)


def columns_row_bytes(config: RecorderConfig) -> int:
    return sum(_COLUMN_BYTES[name] for name in (config.columns or "").split())


# Sources.


def _from_file(path: Path | str, text: bytes | None) -> Iterator[Given]:
    for name, raw, origin in from_file(path, text=text):
        if name == RETENTION:  # only `tape2048 prune` uses it, but its errors show at the start
            read_retention(raw, origin, settings_of(RecorderConfig))
        else:
            yield name, raw, origin


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    settings = settings_of(RecorderConfig)
    by_variable = {setting.env: name for name, setting in settings.items() if setting.has_text}
    for variable, raw in env.items():
        if variable in by_variable:
            yield by_variable[variable], raw, Origin("env", variable)
        elif variable.startswith(ENV_PREFIX) and variable not in OTHER_ENV:
            setting = variable.removeprefix(ENV_PREFIX).lower()
            if setting in LIMITS:
                raise misplaced(variable, LIMITS[setting], Origin("env", variable))
            removed = RecorderConfig.removed.get(setting)
            known = [*by_variable, *OTHER_ENV]
            raise unknown_key(variable, known, Origin("env", variable), removed=removed)


def _with_player(given: dict[str, tuple[Any, Origin]]) -> dict[str, tuple[Any, Origin]]:
    if "player" not in given:
        return given
    text, origin = given["player"]
    try:
        name, args = split_player(text)
    except ValueError as error:
        refuse(
            f"found {text!r}, expected NAME:key=value,key=value ({error} is not key=value, or repeats a key)",
            "player",
            origin,
            hint="Put a value that contains a comma into the file's [player_args].",
        )
    if name == EXEC and args is not None and "player_args" in given:  # the command, and limits in the table
        table, _ = given["player_args"]
        args, given = {**args, **table}, {key: each for key, each in given.items() if key != "player_args"}
    if args is not None and "player_args" in given:
        where = given["player_args"][1].where
        problem = f"found parameters behind the name and in [player_args] ({where}), expected one of the two"
        refuse(problem, "player", origin, hint="Keep the table, and only the name in `player`.")
    return {"player_args": (args or {}, origin), **given, "player": (name, origin)}


def _player_conflicts(config: RecorderConfig) -> Iterator[tuple[str, str, str]]:
    if config.columns is not None and not (config.player in REGISTRY and REGISTRY[config.player].valued):
        valued = " or ".join(name for name, kind in REGISTRY.items() if kind.valued)
        problem = (
            f"found {config.columns!r} with player = {config.player!r}, which computes no values of moves; "
            f"expected the player {valued}"
        )
        yield "columns", problem, "Add columns to the published sessions: tape2048 annotate."
    for name in ("sampling", "model_dir"):
        if getattr(config, name) and not is_batched(config.player):
            problem = f"found with player = {config.player!r}, expected a batched player"
            yield name, problem, f"Use a player python:package.module:factory, or remove {name}."
    if config.player == EXEC and config.model_dir is not None:
        problem = "found with an engine, which loads its files itself"
        yield "model_dir", problem, "Remove model_dir, and name the files in the engine's command."
    if config.player == EXEC and read_sampling(config.sampling).needs_scores:
        method = config.sampling["method"]
        problem = f"found method = {method!r}, expected argmax: an engine returns moves, not scores"
        yield "sampling", problem, "Use only epsilon and its gates with an engine."


def _store_conflicts(config: RecorderConfig) -> Iterator[tuple[str, str, str]]:
    if config.lease is None and config.to is None:
        yield "lease", "found auto without a store, expected a store", "Pass --to, the store with the leases."
    if config.lease != 0 and config.seed is None:
        lease = "auto" if config.lease is None else config.lease
        problem = f"found {lease} without a seed, expected 0: a lease is a range of one seed's games"
        yield "lease", problem, "Pass --seed, the same for all recorders that share it by leases."
    if config.to is not None and config.columns is not None:
        problem = f"found {config.columns!r} with a store, expected none: a store cannot hold columns"
        yield "columns", problem, "Record without --to, or leave the columns out."
    # A full session waits for shipping while the next one is open.
    spool_mb = math.ceil(2 * config.rotate_steps * row_bytes(config) / config.sample_rate / 1e6)
    if config.spool_max_mb is not None and config.spool_max_mb < spool_mb:
        why = f"two sessions of {counted(config.rotate_steps, 'row')}"
        problem = f"found {config.spool_max_mb}, expected at least {spool_mb}: {why}"
        yield "spool_max_mb", problem, "Raise spool_max_mb, or lower rotate_steps."


def _conflicts(
    config: RecorderConfig, origins: Mapping[str, Origin], env: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    if f"{config.instance}.lock" == READERS_LOCK:
        problem = f"found {config.instance!r}, expected another name: readers use {READERS_LOCK}"
        yield "instance", problem, f"Choose another name, such as {config.instance}-1."
    yield from _store_conflicts(config)
    for name in ("start_where", "start_rows_where"):
        if getattr(config, name) is not None and config.start_from is None:
            problem = "found without start_from, to whose sessions it applies"
            yield name, problem, "Pass --from with a session or a directory of sessions."
    if config.storage == "tape" and config.sample_rate > 1:
        problem = f"found {config.sample_rate}, expected 1: a tape ({origins['storage']}) keeps every step"
        yield "sample_rate", problem, 'Remove sample_rate (readers can skip rows), or set storage = "rows".'
    yield from _player_conflicts(config)
    buffers_mb = config.worker_count * buffer_mb(config)
    if config.max_ram_mb is not None and buffers_mb > config.max_ram_mb:
        workers, rows = counted(config.worker_count, "worker"), counted(config.rows_buffered_max, "row")
        why = f"the buffers of {workers} hold {rows} each ({origins['block_rows']})"
        problem = f"found {config.max_ram_mb}, expected at least {math.ceil(buffers_mb)}: {why}"
        yield "max_ram_mb", problem, "Raise max_ram_mb, or lower workers or block_rows."
    if STOP_TIMEOUT_ENV in env:  # the service manager kills a recorder that drains for longer
        seconds = Setting("stop_timeout_s", "float", None, "the unit's TimeoutStopSec", gt=0)
        timeout_s = read_value(seconds, env[STOP_TIMEOUT_ENV], Origin("env", STOP_TIMEOUT_ENV))
        if timeout_s <= config.drain_timeout_s:
            unit = f"the {timeout_s:g} s of the unit's TimeoutStopSec"
            problem = f"found {config.drain_timeout_s:g}, expected less than {unit}"
            hint = f"Lower drain_timeout_s, or raise TimeoutStopSec= and {STOP_TIMEOUT_ENV}= of the unit."
            yield "drain_timeout_s", problem, hint
