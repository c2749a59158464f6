"""Players of recorded games: their names for people, and the labels that select their games."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted, printable, read_plain, show_plain
from tape2048.search_depth import depth_words, look_of, with_look

if TYPE_CHECKING:
    from collections.abc import Sequence


_ENGINE = "exec"  # the player whose moves another program chooses
_NAMED = 8  # players that a message names
_NAME_CHARS = 100  # of a player's name
_DIGITS = 6  # of the SHA-256 in a name

#: Values of parameters that a name leaves out: the defaults of the recorder's players.
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "ntuple": {
        "look_chance": 0.0, "look_unsure": 0.0, "look_margin": 1600.0, "downgrade": -1, "mix": "",
        "epsilon": 0.0, "temperature": 0.0,
    },
    "critic": {"tile": 32768, "weights": "small", "margin": 50.0},
    "expectimax": {},
    _ENGINE: {"start_timeout_s": 60.0, "move_timeout_s": 10.0},
}  # fmt: skip

# An address, or a part of a text that may be a path.
_PLACE = re.compile(r"\w+://\S+|[^=:,'\"]+")

#: Parameters of a search, which a name describes in words.
_SEARCH = ("depth", "look")


def player_text(facts: Mapping[str, Any]) -> str:
    """Return a session's player with its parameters, as ``record`` takes it; empty if the facts have none.

    Files have no directories, since the text is published.
    """
    return _text_of(*public_player(*_player_args(facts)))


def _text_of(name: str, args: Mapping[str, Any]) -> str:
    if name == _ENGINE and "command" in args:  # a command may contain commas, so it comes last
        args = {key: args[key] for key in sorted(args, key=lambda key: key == "command")}
    return f"{name}:{','.join(f'{key}={show_plain(each)}' for key, each in args.items())}" if args else name


def file_names(text: str) -> str:
    """Return a text without the directories of paths: ``tdl2048:/home/ada/4x6.w`` becomes tdl2048:4x6.w."""

    def last(place: re.Match[str]) -> str:
        says_nothing = re.fullmatch(r"\d[\d/+]*|\.\.?/[^/\\]+", place[0])  # a fraction, a depth, or ./FILE
        return place[0] if says_nothing else re.split(r"[/\\](?=.)", place[0])[-1]

    return " ".join(_PLACE.sub(last, word) for word in text.split(" "))


def public_player(name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a player's name and present parameters, without directories."""
    args = with_look(name, args)
    found = {key: file_names(value) if isinstance(value, str) else value for key, value in args.items()}
    return file_names(name) if name.startswith(("python:", f"{_ENGINE}:")) else name, found


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """Split a player as ``record`` takes it into its name and its parameters.

    The parameters start behind the first colon that a ``key=`` follows, so that a name may hold colons. An
    engine's command is the rest of the text: ``exec:./engine --flag`` or ``exec:move_timeout_s=1,./engine``.
    ``tdl2048:FILE`` is ``ntuple`` with these weights.

    Raises:
        ValueError: a parameter is no ``key=value``, or is repeated.
    """
    engine = re.fullmatch(rf"{_ENGINE}:(?P<args>(?:[a-z_]+_s=[^,]*,)*)(?:command=)?(?P<command>.+)", text)
    if engine:
        return _ENGINE, {**_split_args(engine["args"].removesuffix(",")), "command": engine["command"]}
    network = re.fullmatch(r"(?P<weights>tdl2048(?:@[^:,]*)?:[^,]*)(?:,(?P<args>.*))?", text)
    if network:
        return "ntuple", {"weights": network["weights"], **_split_args(network["args"])}
    match = re.fullmatch(r"(?P<name>.+?)(?::(?P<args>[A-Za-z_]\w*=.*))?", text)
    return (match["name"], _split_args(match["args"])) if match else (text, {})


def _split_args(text: str | None) -> dict[str, str]:
    args: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", key) or not equals or key in args:
            raise ValueError(item)
        args[key] = value
    return args


def _player_args(facts: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, config = facts.get("player"), facts.get("config")
    args = facts.get("player_args", config.get("player_args") if isinstance(config, dict) else None)
    if not isinstance(name, str):
        return "", {}
    return name, with_look(name, args) if isinstance(args, dict) else {}


def player_name(facts: Mapping[str, Any]) -> str:
    """Return the name of a session's player for people, as ``ntuple fast, 2-ply always @012345``.

    It has the kind, the network, the search, and the parameters that differ from the recorder's defaults.
    ``1-ply`` compares the boards after each move, and every spawn that the player looks ahead adds a ply. The
    digits are of the SHA-256. The name has at most 100 characters.
    """
    kind, args = _player_args(facts)
    if not args:  # they may be in the text, as `player_text` returns it
        with contextlib.suppress(ValueError):
            kind, given = split_text(kind)
            args = {key: value if key == "look" else read_plain(value) for key, value in given.items()}
            args = with_look(kind, args)
    words = [":".join(kind.split(":")[-2:]).rpartition("/")[2] or "unknown player"]
    if kind == _ENGINE and isinstance(command := args.get("command"), str):
        words[0] += " " + re.sub(r"^\s*\S*/", "", command)
    network = next((key for key in ("critic", "weights") if isinstance(args.get(key), str)), None)
    if network:
        words[0] += f" {re.split('[.@]', _file_name(args[network]))[0]}"
    words += (searched := _search(kind, args))
    usual, said = _USUAL.get(kind, {}), {network, "command", *(_SEARCH if searched else ())}
    words += [
        f"{key}={_file_name(value)}"
        for key, value in args.items()
        if key not in said and usual.get(key) != value and not key.endswith("sha256")
    ]
    name = ", ".join(words)
    digits = "" if name == (player_label(facts) or "unknown player") else f" @{_digits(facts)}"
    room = _NAME_CHARS - len(digits)
    return (f"{name[: room - 1]}…" if len(name) > room else name) + digits


def _file_name(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else file_names(show_plain(value))


def _search(kind: str, args: Mapping[str, Any]) -> list[str]:
    """Return the depths of a player's search with the boards to which they apply; none if unknown."""
    depth, phases, plies = args.get("depth"), look_of(kind, args), 1 + (kind == "critic")
    if kind == "expectimax" and isinstance(depth, int):
        return [f"{plies + depth}-ply"]
    if kind not in _USUAL or not phases or args.get("mix"):
        return []
    unsure = args.get("look_unsure") and phases[0].depths
    return depth_words(phases, plies) + [f"to {plies + len(phases[0].below)}-ply where unsure"] * bool(unsure)


def plies_of(kind: str, args: Mapping[str, Any]) -> int:
    """Return the plies of a player's deepest search."""
    phases, depth = look_of(kind, args), args.get("depth")
    mixed = re.findall(r"(?:^|\+)(\d+)", args["mix"]) if isinstance(args.get("mix"), str) else []
    if mixed:
        phases = [phase._replace(below=(max(map(int, mixed)), *phase.below[1:])) for phase in phases]
    spawns = [len(phase.depths) for phase in phases] + [depth if isinstance(depth, int) else 0]
    if args.get("look_unsure") and phases and phases[0].depths:
        spawns.append(len(phases[0].below))
    return 1 + (kind == "critic") + max(spawns)


def is_called(given: str, label: str, name: str) -> bool:
    """Whether a text is the label or name of a player, their first words, or a name's last digits."""
    ends = tuple(given + mark for mark in "@:, ")
    if any(text == given or text.startswith(ends) for text in (label, name, name.removeprefix("ntuple "))):
        return True
    digits = re.search(rf"@([0-9a-f]{{{_DIGITS},12}})$", given)
    return digits is not None and label.rpartition("@")[2].startswith(digits[1])


def _digits(facts: Mapping[str, Any]) -> str:
    sha256 = facts.get("player_sha256")
    known = sha256 if isinstance(sha256, str) and sha256 else _sha256(_text_of(*_player_args(facts)))
    return known[:_DIGITS]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def player_label(facts: Mapping[str, Any]) -> str:
    """Return ``NAME@`` and 12 digits of the SHA-256; without a SHA-256, :func:`player_text`."""
    text, sha256 = player_text(facts), facts.get("player_sha256")
    if not isinstance(sha256, str) or not sha256:
        return text
    words = text.split(":")
    name = ":".join(words[1:3]).rpartition("/")[2] if words[0] == "python" else words[0]
    return f"{name}@{sha256[:12]}"


class PlayedBy(msgspec.Struct, frozen=True):
    name: str  # with its parameters; empty if its sessions have none
    sha256: str  # empty if its sessions have none: then sessions with the same name have the same player
    games: int  # number of its games

    @property
    def _facts(self) -> dict[str, Any]:
        return {"player": self.name, "player_sha256": self.sha256}

    @property
    def label(self) -> str:
        return player_label(self._facts)

    @property
    def player_name(self) -> str:
        return player_name(self._facts)

    def __str__(self) -> str:
        return f"{printable(self.player_name)} ({counted(self.games, 'game')})"


def identity_of_player(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and SHA-256 (or empty). Players with the same SHA-256, or else name, are the same."""
    given = facts.get("player_sha256")
    return player_text(facts), given if isinstance(given, str) else ""


def only_player(player: PlayedBy) -> str:
    quoted = player.label.replace("'", "''")
    return f"player = '{quoted}'"


def name_players(players: Sequence[PlayedBy]) -> str:
    more = f" and {len(players) - _NAMED} more" if len(players) > _NAMED else ""
    return f"{counted(len(players), 'player')}: {'; '.join(map(str, players[:_NAMED]))}{more}"
