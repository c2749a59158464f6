"""Settings, declared as fields of a Struct, and read from files, environment variables, flags and tables.

A setting is declared once::

    rotate_s: Annotated[Seconds | None, about("longest a session stays open", why="...", none="off")] = None

:func:`settings_of` returns one :class:`Setting` for each field. Flags, environment variables, messages, the
reference table and the sample file derive from it. :func:`read_value` parses and checks every value:

* **Text** (flags, environment): ``10_000_000``, ``1e7`` and ``10M`` are the same whole number. Seconds can
  have the units ``s``, ``min``, ``h`` and ``d``, and megabytes (10**6 bytes) ``MB``, ``GB`` and ``TB``.
* **TOML**: numbers are TOML numbers, or the word for None, such as ``"off"``.
* **Lists**: words separated by commas or spaces, or, in a file, an array. The value has single spaces.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeGuard, TypeVar

import msgspec
from msgspec import inspect

from tape2048.base.text import DIGITS_MAX, is_utf8, number_in, show_plain, split_words
from tape2048.errors import ConfigError

S = TypeVar("S", bound="Settings")

ENV_PREFIX = "TAPE2048_"

Kind = Literal["int", "float", "str", "bool", "table"]
_KINDS: dict[type[inspect.Type], Kind] = {
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BoolType: "bool",
}

#: Suffixes of numbers in text and their factors, by the unit of the setting.
_SUFFIXES: dict[str, dict[str, Decimal]] = {
    "count": {"k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9},
    "s": {"s": Decimal(1), "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)},
    "mb": {"MB": Decimal(1), "GB": Decimal(10) ** 3, "TB": Decimal(10) ** 6},
}
_COUNTED = ("games", "moves", "_rows", "_sessions", "_steps")

_BOOLS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)

_FLOAT_EXACT_MAX = 2**53  # whole numbers written as floats (``1e7`` in TOML) are exact up to here

Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Origin(msgspec.Struct, frozen=True):
    """The source of a value. ``where`` is ``FILE:LINE``, the variable, the flag, or empty for a default."""

    kind: Literal["default", "file", "env", "flag"]
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


DEFAULT = Origin("default")

#: A value from a source: the setting's name, the value before it is parsed, and its origin.
Given = tuple[str, object, Origin]


class Setting(msgspec.Struct, frozen=True):
    name: str  # ends with the unit, if any
    kind: Kind
    default: Any
    text: str  # effect of the setting
    why: str = ""  # reason for the default
    none: str | None = None  # word for None in flags, environment and file
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    pattern: str | None = None  # regular expression for the whole text
    form: str | None = None  # the pattern, in words
    choices: Sequence[str] = ()
    group: str | None = None  # heading in the help
    many: bool = False  # whether the value is a list of words
    flag: str = ""  # flag, name of an argument in capitals, or empty: only in files and variables

    @property
    def env(self) -> str:
        """The environment variable that sets the setting."""
        return ENV_PREFIX + self.name.upper()

    @property
    def has_text(self) -> bool:
        """Whether a flag or a variable can hold the setting. Tables are only in files."""
        return self.kind != "table"

    @property
    def unit(self) -> str:
        """The unit at the end of the name: ``s``, ``mb``, ``count``, or empty."""
        if self.name.endswith(_COUNTED):
            return "count"
        suffix = self.name.rpartition("_")[2]
        return suffix if suffix in _SUFFIXES else ""

    @property
    def units(self) -> str:
        *some, last = _SUFFIXES.get(self.unit, {"": 1})
        return f"{', '.join(some)} or {last}" if some else last

    @property
    def expected(self) -> str:
        words = {"bool": "true or false", "table": "a table of names and plain values"}.get(self.kind)
        words = words or self.form or "text"
        if self.kind in ("int", "float"):
            words = "a whole number" if self.kind == "int" else "a number"
            words += {"s": " of seconds", "mb": " of megabytes"}.get(self.unit, "")
            if self.gt is not None:
                words += f" above {self.gt:g}"
            elif self.ge is not None:
                ends = f" from {_plain(self.ge)} to {_plain(self.le)}" if self.le is not None else ""
                words += ends or f" of at least {_plain(self.ge)}"
        return words if self.none is None else f'{words}, or "{self.none}"'

    def show(self, value: object) -> str:
        if value is None:
            return self.none or '""'
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return repr(value).removesuffix(".0")
        if isinstance(value, dict):
            return ", ".join(f"{key}={show_plain(item)}" for key, item in value.items()) or "{}"
        if isinstance(value, int) and self.unit == "count":
            return f"{value:_}"
        return str(value)


def about(
    text: str,
    *,
    why: str = "",
    none: str | None = None,
    form: str | None = None,
    choices: Sequence[str] = (),
    group: str | None = None,
    many: bool = False,
    flag: str | None = None,
    **bounds: Any,
) -> msgspec.Meta:
    """Return the annotation of a field that declares a setting.

    ``text`` is the effect and ``why`` the reason for the default. ``flag`` replaces the flag that is derived
    from the name; empty, there is none.
    """
    if choices:
        *some, last = choices
        form, bounds["pattern"] = f"{', '.join(some)} or {last}", rf"^({'|'.join(choices)})$"
    extra: dict[str, Any] = {"why": why, "none": none, "form": form, "choices": choices}
    extra |= {"group": group, "many": many, "flag": flag}
    if bounds.get("le", 0) >= 2**63 - 1:  # too large for msgspec
        extra["le"] = bounds.pop("le")
    return msgspec.Meta(description=text, extra=extra, **bounds)


@functools.cache
def settings_of(config: type[msgspec.Struct]) -> dict[str, Setting]:
    info = inspect.type_info(config)
    assert isinstance(info, inspect.StructType)
    found: dict[str, Setting] = {}
    group = None
    for field in info.fields:
        setting = _setting(field)
        group = setting.group or group
        found[field.name] = msgspec.structs.replace(setting, group=group)
    return found


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of configurations for :func:`load_settings`. :func:`about` declares each field.

    Attributes:
        removed: settings of earlier versions, each with text about its replacement.
    """

    removed: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def check(self) -> None:
        """Raise ConfigError for settings that conflict with each other."""


def load_settings(
    kind: type[S], path: Path | None, flags: Mapping[str, object] | None, *, listed_by: str
) -> S:
    """Load a configuration from a file and flags. ``listed_by`` is the command that lists the settings."""
    hint = f"Choose a different file with --config; `{listed_by}` prints a sample."
    file = [] if path is None else from_file(path, hint)
    given = read_given(kind, [*file, *from_flags(kind, flags or {})], listed_by=listed_by)
    return _checked(kind, given, DEFAULT if path is None else Origin("file", str(path)))


def _checked(kind: type[S], given: Mapping[str, tuple[Any, Origin]], origin: Origin) -> S:
    config = kind(**{name: value for name, (value, _) in given.items()})
    with located(origin):
        config.check()
    return config


def read_table(
    kind: type[S], raw: object, name: str, origin: Origin = DEFAULT, outer: Collection[str] = ()
) -> S:
    """Read a table of settings into a configuration. Settings that it lacks have their defaults.

    ``outer`` are the names of the settings outside of the table, for the error of a misplaced setting.
    """
    given = [(key, value, origin) for key, value in as_table(raw, name, origin).items()]
    return _checked(kind, read_given(kind, given, table=name, places=dict.fromkeys(outer, "")), origin)


def as_table(raw: object, name: str, origin: Origin) -> dict[str, object]:
    """Return a table; raise ConfigError for another value."""
    if not isinstance(raw, dict):
        refuse(f"found {raw!r}, expected a table of settings", name, origin, hint=f"Write [{name}].")
    return raw


def from_file(path: Path | str, hint: str | None = None, text: bytes | None = None) -> list[Given]:
    """Return the values of a TOML file, or of its ``text``. ``hint`` is for a file that cannot be read."""
    values, lines = read_toml(path, hint or _SAMPLE_HINT, text)
    return [(name, raw, Origin("file", f"{path}:{lines[name]}")) for name, raw in values.items()]


def from_flags(kind: type[msgspec.Struct], flags: Mapping[str, object]) -> list[Given]:
    """Return the values of the flags of a command, except for None: these flags were not given."""
    names = {name: setting.flag for name, setting in settings_of(kind).items()}
    return [
        (name, raw, Origin("flag", names.get(name) or name)) for name, raw in flags.items() if raw is not None
    ]


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_given(
    kind: type[msgspec.Struct],
    given: Iterable[Given],
    *,
    table: str = "",
    also: Iterable[str] = (),
    places: Mapping[str, str] = MappingProxyType({}),
    listed_by: str = "tape2048 config show",
) -> dict[str, tuple[Any, Origin]]:
    """Parse and check values, and return each with its origin. A later value replaces an earlier one.

    For messages, ``table`` is the name of the table that they are in, ``also`` are other valid names,
    ``places`` are the tables of the settings of other tables ("" for those outside of a table), and
    ``listed_by`` is the command that lists the settings.
    """
    settings, found = settings_of(kind), {}
    for name, raw, origin in given:
        if name not in settings and name in places:
            raise misplaced(name, places[name], origin)
        if name not in settings:
            removed = getattr(kind, "removed", {}).get(name)
            raise unknown_key(
                name, [*settings, *also], origin, table=table, listed_by=listed_by, removed=removed
            )
        setting = settings[name]
        if table:
            setting = msgspec.structs.replace(setting, name=f"{table}.{name}")
        found[name] = read_value(setting, raw, origin), origin
    return found


@contextlib.contextmanager
def located(origin: Origin) -> Iterator[None]:
    """Add the origin of a value to a ConfigError of the block."""
    try:
        yield
    except ConfigError as error:
        path = error.path or (origin.where if origin.kind == "file" else None)
        named = f"{origin.where}: " if origin.kind in ("env", "flag") else ""
        raise type(error)(named + error.message, path=path, hint=error.hint) from error


def _setting(field: inspect.Field) -> Setting:
    assert isinstance(field.type, inspect.Metadata), f"{field.name} lacks its declaration: use about()"
    extra = dict(field.type.extra or {})
    text = (field.type.extra_json_schema or {})["description"]
    inner = field.type.type
    if isinstance(inner, inspect.UnionType):
        inner = next(option for option in inner.types if not isinstance(option, inspect.NoneType))
    kind = _KINDS.get(type(inner), "table")
    bounds = {name: getattr(inner, name, None) for name in ("gt", "ge", "le", "pattern")}
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if extra["flag"] is None:
        extra["flag"] = _flag_of(field.name)
    return Setting(name=field.name, kind=kind, default=default, text=text, **{**bounds, **extra})


def read_value(setting: Setting, raw: object, origin: Origin) -> Any:
    """Parse and check a value, which is text unless it is from a file; raise ConfigError if it is invalid."""
    if setting.none is not None and (raw is None or raw == setting.none):
        return None
    if setting.kind == "bool":
        value = _BOOLS.get(raw.strip().lower()) if _is_text(raw, origin) else raw
        return value if isinstance(value, bool) else _refuse(setting, raw, origin)
    if setting.kind == "str":
        return _read_text(setting, _spaced(raw) if setting.many else raw, origin)
    if setting.kind != "table":
        return _read_number(setting, raw, origin)
    if not isinstance(raw, dict):
        _refuse(setting, raw, origin)
    for key, value in raw.items():
        if not isinstance(value, int | float | str) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            _refuse(setting, {key: value}, origin)
    return dict(raw)


def _spaced(raw: object) -> object:
    if isinstance(raw, list) and all(isinstance(item, int | float | str) for item in raw):
        raw = " ".join(map(str, raw))
    return " ".join(split_words(raw)) if isinstance(raw, str) else raw


def _read_text(setting: Setting, raw: object, origin: Origin) -> str:
    if not isinstance(raw, str) or "\0" in raw or not re.fullmatch(setting.pattern or "(?s:.*)", raw):
        _refuse(setting, raw, origin)
    if not is_utf8(raw):
        hint = "write it in UTF-8"
        refuse(f"found {raw!r}, expected UTF-8 text", setting.name, origin, hint=hint)
    return raw


def _is_text(raw: object, origin: Origin) -> TypeGuard[str]:
    return isinstance(raw, str) and origin.kind in ("env", "flag")


def _read_number(setting: Setting, raw: object, origin: Origin) -> float:
    number = None
    if _is_text(raw, origin):
        number = number_in(raw, _SUFFIXES.get(setting.unit, {}))
    elif isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < 10**DIGITS_MAX:
        number = Decimal(raw)  # the condition excludes NaN, infinity, and integers with millions of digits
    valid = (
        number is not None
        and (setting.ge is None or number >= setting.ge)
        and (setting.gt is None or number > setting.gt)
        and (setting.le is None or number <= setting.le)
    )
    if setting.kind == "int" and number is not None:
        inexact = isinstance(raw, float) and abs(raw) > _FLOAT_EXACT_MAX
        valid = valid and not inexact and number == number.to_integral_value()
    if number is None or not valid:
        _refuse(setting, raw, origin)
    return int(number) if setting.kind == "int" else float(number)


def _refuse(setting: Setting, raw: object, origin: Origin) -> NoReturn:
    hint = f"{setting.name}: {setting.text} (default {setting.show(setting.default)})"
    if origin.kind == "file" and isinstance(raw, str) and setting.kind in ("int", "float", "bool"):
        number = number_in(raw, _SUFFIXES.get(setting.unit, {}))
        is_unit = number and raw.rstrip()[-1].isalpha()
        plain = f", and without a unit: {number.normalize():f}" if number and is_unit else ""
        hint = f"write it without quotes{plain}; {hint}"
    elif _is_text(raw, origin) and setting.units:
        hint = f"a unit may follow the number: {setting.units}; {hint}"
    found = "nothing" if raw is None else repr(raw)
    refuse(f"found {found}, expected {setting.expected}", setting.name, origin, hint=hint)


def refuse(problem: str, name: str, origin: Origin, *, hint: str) -> NoReturn:
    if origin.kind == "file":
        raise ConfigError(f"{name}: {problem}", path=origin.where, hint=hint)
    raise ConfigError(f"{origin.where or name}: {problem}", hint=hint)


def unknown_key(
    found: str,
    known: Iterable[str],
    origin: Origin,
    *,
    table: str = "",
    listed_by: str = "tape2048 config show",
    removed: str | None = None,
) -> ConfigError:
    """Make the error of an unknown setting, with the nearest known one, or with its replacement."""
    path = origin.where if origin.kind == "file" else None
    if removed is not None:
        hint = "Delete the line." if path else f"Leave {origin.where or found} out."
        return ConfigError(f"{found!r} was removed: {removed}", path=path, hint=hint)
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(found.lower(), names, n=1, cutoff=0)
    nearest = f". The nearest is {names[near[0]]!r}" if near else ""
    message = f"{table}: " * bool(table) + f"found {found!r}, which is not a setting{nearest}"
    hint = f"its settings: {', '.join(names.values()) or 'none'}" if table else f"list them all: {listed_by}"
    return ConfigError(message, path=path, hint=hint)


def misplaced(found: str, table: str, origin: Origin) -> ConfigError:
    """Make the error of a setting that belongs in another table, or in none (``""``)."""
    place = f"below [{table}]" if table else "above the first [table]"
    if origin.kind == "file":
        hint = f"Move the line {place}."
        return ConfigError(f"found {found!r}; expected it {place}", path=origin.where, hint=hint)
    hint = f"Write it {place} in the file of --config."
    return ConfigError(f"found {found!r}; expected it in the file only", hint=hint)


def _plain(bound: float) -> str:
    return str(int(bound) if bound == int(bound) else bound)  # 18446744073709551615, not 1.8e+19


# TOML.

#: Limit of a configuration file, so that a device or a data file is not read completely.
CONFIG_BYTES_MAX = 1_000_000

_SAMPLE_HINT = "choose another file with --config or TAPE2048_CONFIG, or write one: tape2048 config init"


def read_toml(
    path: Path | str, sample_hint: str = _SAMPLE_HINT, data: bytes | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a TOML file, or its ``data``; return its values, and the line number of each top-level name."""
    try:
        if data is None:
            with Path(path).open("rb") as file:
                data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            found = f"found more than {CONFIG_BYTES_MAX:,} bytes, expected a page of TOML"
            raise ConfigError(found, path=path, hint=sample_hint)
        text = data.decode("utf-8-sig")
    except OSError as error:
        found = f"found {error.strerror or error}, expected a TOML file that can be read"
        raise ConfigError(found, path=path, hint=sample_hint) from error
    except UnicodeDecodeError as error:
        byte, hint = error.object[error.start], "save the file as UTF-8"
        found = f"found byte 0x{byte:02x}, expected UTF-8 text"
        raise ConfigError(found, path=path, offset=error.start, hint=hint) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+), column \d+", str(error))
        last = max(len(text.splitlines()), 1)
        where = match[0] if match else f"line {last}, column {len(text.splitlines()[-1]) + 1}"
        what = str(error).rpartition(" (at ")[0] or error
        found = f"found malformed TOML, expected key = value: {what} ({where})"
        hint = "put text in quotes; write numbers, true and false without quotes"
        raise ConfigError(found, path=f"{path}:{match[1] if match else last}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        found = f"found TOML that cannot be read, expected key = value: {error}"
        hint = "look for a number with thousands of digits, or for thousands of brackets"
        raise ConfigError(found, path=path, hint=hint) from error
    return values, _lines(text)


def _lines(text: str) -> dict[str, int]:
    # Lines are joined until they parse as a statement: text in a multi-line value is no name.
    lines: dict[str, int] = {}
    table: str | None = None
    gathered: list[str] = []
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        gathered.append(line)
        try:
            statement = tomllib.loads("\n".join(gathered))
        except tomllib.TOMLDecodeError:
            continue
        is_header = gathered[0].lstrip().startswith("[")
        for name in statement:
            table = name if is_header else table
            lines.setdefault(table or name, number - len(gathered) + 1)
        gathered.clear()
    return lines


def settings_toml(config: msgspec.Struct) -> str:
    entries = []
    for setting in sorted(settings_of(type(config)).values(), key=lambda setting: setting.kind == "table"):
        value = getattr(config, setting.name)
        entries.append(f"{_about(setting, named=value != setting.default)}\n{_toml_line(setting, value)}")
    return "\n\n".join(entries) + "\n"


def sample_entry(setting: Setting) -> str:
    """Format a setting as its explanation and its default, commented out."""
    return f"{_about(setting)}\n#{_toml_line(setting, setting.default)}"


def _about(setting: Setting, *, named: bool = False) -> str:
    default = f"Default ({_toml_value(setting, setting.default)})" if named else "Default"
    what = f"{setting.text[0].upper()}{setting.text[1:]}"
    return comment(f"{what}.\nValues: {setting.expected}.\n{default}: {setting.why}.")


def comment(text: str) -> str:
    lines = [part for line in text.split("\n") for part in (textwrap.wrap(line, 98) or [""])]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _toml_line(setting: Setting, value: object) -> str:
    if isinstance(value, dict):
        entries = (
            f"{json.dumps(key)} = {json.dumps(each, ensure_ascii=False)}" for key, each in value.items()
        )
        return "\n".join([f"[{setting.name}]", *entries])
    return f"{setting.name} = {_toml_value(setting, value)}"


def _toml_value(setting: Setting, value: object) -> str:
    shown = setting.none if value is None else setting.show(value)
    if value is None or setting.kind == "str":
        return json.dumps(shown, ensure_ascii=False)  # a JSON string is a valid TOML string
    return str(shown)
