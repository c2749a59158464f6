"""The recorder's configuration: one frozen Struct, and where each of its values came from.

A value given in more than one place counts in this order: flag, environment (``TAPE2048_<NAME>``), file,
default. The file is TOML, named by ``--config`` or ``TAPE2048_CONFIG``; no other place is searched. A name
that no setting has is refused wherever it stands, with the nearest one that exists.

A player and its parameters are one choice: a source that names a ``player`` also sets ``player_args``,
to what stands behind the name (``expectimax:depth=2``), to its ``[player_args]`` table if it is a file,
or to nothing. Parameters for one player never reach another that way.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tape2048._cores import available_cores
from tape2048.errors import ConfigError
from tape2048.settings_fields import (
    ENV_PREFIX,
    Origin,
    about,
    read_plain,
    read_value,
    refuse,
    settings_of,
    unknown_key,
)
from tape2048.settings_toml import read_toml
from tape2048_recorder.config_checks import STOP_TIMEOUT_ENV, check_together
from tape2048_recorder.players import REGISTRY, check_player, takes_text
from tape2048_recorder.retention import TABLE as RETENTION_TABLE
from tape2048_recorder.retention import read_retention

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "CONFIG_ENV",
    "STOP_TIMEOUT_ENV",
    "Loaded",
    "Origin",
    "RecorderConfig",
    "check_loaded_player",
    "config_sha256",
    "effective",
    "load_config",
    "split_player",
]

#: The environment variable that names the file.
CONFIG_ENV = ENV_PREFIX + "CONFIG"

#: Variables with our prefix that are not settings. Any other one is refused as a misspelt setting.
OTHER_ENV = frozenset({CONFIG_ENV, STOP_TIMEOUT_ENV})

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


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, where each of its values was written, and the file that was read, if any."""

    config: RecorderConfig
    origins: dict[str, Origin]
    path: str | None = None


def load_config(flags: Mapping[str, object], env: Mapping[str, str], path: Path | None = None) -> Loaded:
    """The configuration that flags, environment and file make together.

    Args:
        flags: settings by name, as the command line gave them; None means not given.
        env: the environment.
        path: the file; None: the one that ``TAPE2048_CONFIG`` names, or none.

    Raises:
        UnknownKeyError: a setting that does not exist.
        ConfigError: a value that cannot be, a file that cannot be read, or settings that contradict.
    """
    if path is None and CONFIG_ENV in env:
        if not env[CONFIG_ENV]:
            raise ConfigError(
                f"{CONFIG_ENV}: found '', expected the path of a file", hint="unset it, or name a TOML file"
            )
        path = Path(env[CONFIG_ENV])
    settings = settings_of(RecorderConfig)
    values = {name: setting.default for name, setting in settings.items()}
    origins = {name: Origin("default") for name in settings}
    # From the weakest source to the strongest: each overwrites what the ones before it said.
    for source in (_from_file(path), _from_env(env), _from_flags(flags)):
        given = {name: (read_value(settings[name], raw, origin), origin) for name, raw, origin in source}
        for name, (value, origin) in _with_player(given).items():
            values[name], origins[name] = value, origin
    config = msgspec.convert(values, RecorderConfig)
    check_together(config, origins, env)
    return Loaded(config=config, origins=origins, path=None if path is None else str(path))


def effective(config: RecorderConfig) -> dict[str, Any]:
    """What a session records of its configuration: every setting, with the tag that it is named after."""
    return {**msgspec.to_builtins(config), "model_tag": config.tag}


def config_sha256(config: RecorderConfig) -> str:
    """SHA-256 (hex) of :func:`effective` as canonical JSON: sorted keys, no white space, UTF-8."""
    text = json.dumps(
        effective(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def split_player(text: str) -> tuple[str, dict[str, int | float | str | bool] | None]:
    """A player's name and the parameters behind it, None where none are.

    The parameters start behind the first colon that a ``key=`` follows, so that a name may hold colons. What
    is text to the player stays text: ``mix=16``, or a file called 007.

    >>> split_player("expectimax:depth=2")
    ('expectimax', {'depth': 2})
    >>> split_player("python:my.module:factory")
    ('python:my.module:factory', None)
    """
    match = re.fullmatch(r"(?P<name>.+?)(?::(?P<args>[A-Za-z_]\w*=.*))?", text)
    if match is None or match["args"] is None:
        return text, None
    args: dict[str, int | float | str | bool] = {}
    for item in match["args"].split(","):
        key, equals, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", key) or not equals or key in args:
            raise ValueError(item)
        args[key] = value if takes_text(match["name"], key) else read_plain(value)
    return match["name"], args


Given = tuple[str, object, Origin]


def _from_file(path: Path | None) -> Iterator[Given]:
    if path is None:
        return
    values, lines = read_toml(path)
    for name, raw in values.items():
        origin = Origin("file", f"{path}:{lines[name]}")
        if name == RETENTION_TABLE:  # for `tape2048 prune`; a mistake in it is said now, and not at night
            read_retention(raw, origin)
            continue
        if name not in settings_of(RecorderConfig):
            raise unknown_key(name, [*settings_of(RecorderConfig), RETENTION_TABLE], origin)
        yield name, raw, origin


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    by_variable = {
        setting.env: name for name, setting in settings_of(RecorderConfig).items() if setting.has_text
    }
    for variable, raw in env.items():
        if variable in by_variable:
            yield by_variable[variable], raw, Origin("env", variable)
        elif variable.startswith(ENV_PREFIX) and variable not in OTHER_ENV:
            raise unknown_key(variable, [*by_variable, *OTHER_ENV], Origin("env", variable))


def _from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    settings = settings_of(RecorderConfig)
    for name, raw in flags.items():
        if name not in settings:
            raise unknown_key(name, settings, Origin("flag"))
        if raw is not None:
            yield name, raw, Origin("flag", settings[name].flag)


def _with_player(given: dict[str, tuple[Any, Origin]]) -> dict[str, tuple[Any, Origin]]:
    """What one source gave, with the parameters split from the player's name."""
    if "player" not in given:
        return given
    text, origin = given["player"]
    try:
        name, args = split_player(text)
    except ValueError as error:
        problem = (
            f"found {text!r}, expected NAME:key=value,key=value ({error} is not a key=value, or comes twice)"
        )
        refuse(
            problem, "player", origin, hint="a value with a comma in it goes into the file's [player_args]"
        )
    if args is not None and "player_args" in given:
        where = given["player_args"][1].where
        problem = f"found parameters behind the name and in [player_args] ({where}), expected one of them"
        refuse(problem, "player", origin, hint="keep the table, and the bare name in `player`")
    return {"player_args": (args or {}, origin), **given, "player": (name, origin)}


def check_loaded_player(loaded: Loaded) -> None:
    """Refuse a player that does not exist or does not take these parameters, where it was written.

    Raises:
        UnknownKeyError: no such player or parameter; the nearest one is named.
        ConfigError: a parameter that cannot be.
    """
    try:
        check_player(loaded.config.player, loaded.config.player_args)
    except ConfigError as error:
        takes_args = loaded.config.player in REGISTRY and loaded.config.player_args
        origin = loaded.origins["player_args" if takes_args else "player"]
        path = origin.where if origin.kind == "file" else None
        named = f"{origin.where}: " if origin.kind in {"env", "flag"} else ""
        raise type(error)(f"{named}{error.message}", path=path, hint=error.hint) from error
