"""The generated parts of the documentation: tables of settings, players, errors, and the command line.

    python -m tests.pages          # writes them into README.md and docs/ (make generate)

Each part is enclosed by ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` in its page.
"""

import functools
import html
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from tape2048.base.settings import settings_of
from tape2048.critic.critic_config import CriticConfig, NTupleCriticConfig
from tape2048.errors import TapeError
from tape2048.loader import FIELDS
from tape2048.runs.registry import FORMATS
from tape2048.session.batch_fields import AHEAD
from tape2048_recorder.ntuple_training.training_config import TrainingConfig
from tape2048_recorder.players.options import REGISTRY
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.retention import RetentionLimits
from tape2048_tools.cli import cli
from tape2048_tools.commands.runs.a2pack_command import command as a2pack

from .dependencies import licence_of, needs

CHECKOUT = Path(__file__).resolve().parents[1]

_EMPTY = '""'

#: A line for each player of the table of strength, written by ``python -m tests.bench.engines``.
STRENGTHS = CHECKOUT / "tests/bench/engines/players.jsonl"
#: The players of the curve, measured by `python -m tests.bench.depths`.
DEPTHS = CHECKOUT / "tests/bench/depths.jsonl"

#: Players of the table of disk space.
DISK_SHOWN = ("ntuple:look=0", "ntuple", "ntuple:look=16,look_margin=0")

#: Rows of the table of strength that the README shows, by the beginning of their first cell.
PLAYERS_SHOWN = (
    "`greedy`",
    "`ntuple:weights=small`",
    "`ntuple:look=0`",
    "`ntuple` (default)",
    "`ntuple:look=16,look_margin=0`",
    "`ntuple:look=16/6,look_margin=0`",
)


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    cells = ([text.replace("|", "\\|") for text in line] for line in [head, *rows])
    lines = [f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in cells]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


def settings_table(config: type[msgspec.Struct]) -> str:
    """Return the table of settings: setting, default, values, effect, reason for the default."""
    head = ["setting", "default", "values", "what it does", "why this default"]
    return table(
        head,
        (
            (f"`{one.name}`", f"`{one.show(one.default) or _EMPTY}`", one.expected, one.text, one.why)
            for one in settings_of(config).values()
        ),
    )


def players_table() -> str:
    """Return a section for each built-in player, with the table of its parameters."""
    parts = []
    for kind in REGISTRY.values():
        parts.append(f"## `{kind.name}`\n\n{kind.summary[0].upper()}{kind.summary[1:]}.\n")
        if kind.parameters:
            rows = (
                [f"`{name}`", f"`{_EMPTY if each.default == '' else each.default}`", each.expected, each.text]
                for name, each in kind.parameters.items()
            )
            parts.append(table(["parameter", "default", "values", "what it does"], rows))
    return "\n".join(parts)


def fields_table() -> str:
    """Return the fields of batches."""
    rows = (
        (
            f"`{name}`",
            np.dtype(field.dtype).name if field.dtype else "`label_dtype`",
            {"tokens": "16", "labels": "T"}.get(name, ""),
            field.about,
        )
        for name, field in (FIELDS | {f"{kind}_K": field for kind, field in AHEAD.items()}).items()
    )
    return table(["field", "type", "values a row", "content"], rows)


def error_tree(root: type[TapeError] = TapeError) -> Iterator[type[TapeError]]:
    """Yield an error class and all its subclasses, depth first."""
    yield root
    for kind in root.__subclasses__():
        yield from error_tree(kind)


def errors_table() -> str:
    """Return the table of exit codes: exit code, class, base class, meaning, what to do; by exit code."""
    kinds = sorted(error_tree(), key=lambda kind: kind.exit_code)
    return table(
        ["exit code", "class of `tape2048.errors`", "base class", "meaning", "what to do"],
        (
            [
                str(kind.exit_code),
                f"`{kind.__name__}`",
                "" if kind is TapeError else f"`{kind.__mro__[1].__name__}`",
                " ".join((kind.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`"),
                kind("").advice,
            ]
            for kind in kinds
        ),
    )


def commands_reference() -> str:
    """Return the list of commands by purpose, with links to their pages."""
    parts = []
    for title, names in cli.headings.items():
        rows = ([f"[`{name}`](commands/{name}.md)", cli.lazy[name][1]] for name in names)
        parts.append(f"## {title}\n\n{table(['command', ''], rows)}")
    parts.append("[`a2pack`](commands/a2pack.md) is a separate program that writes and reads packs.\n")
    pages = "\n".join(f"commands/{name}" for name in (*cli.lazy, "a2pack"))
    return "\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{pages}\n```\n"])


def command_reference(name: str) -> str:
    """Return the page of a command, below its title."""
    if name == "a2pack":
        return "\n".join(_command(a2pack, None, name, "#"))
    context = click.Context(cli, info_name="tape2048", **cli.context_settings)  # commands keep its `-h`
    command = cli.get_command(context, name)
    return "\n".join(_command(command, context, name, "#"))


def _command(command: click.Command, parent: click.Context | None, name: str, heading: str) -> Iterator[str]:
    """Yield the section of a command: purpose, usage, options, examples; and those of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    title = f"{heading} `{context.command_path}`\n\n" if len(heading) > 1 else ""
    yield f"{title}```text\n{' '.join(usage.split())}\n```\n"
    yield _text(inspect.cleandoc(command.help or "")) + "\n"
    own = [parameter for parameter in command.params if not hasattr(parameter, "group")]
    settings = [(each.opts[0], str(each.name)) for each in command.params if each not in own]
    for flag, field in [pair for pair in settings if "_" in pair[1] and "-" in pair[0][2:]][:1]:
        yield f"[Settings](../settings.md) are flags, too: `{flag}` sets `{field}`.\n"
    records = [each.get_help_record(context) for each in own if isinstance(each, click.Option)]
    if any(records):
        yield table(["option", ""], ([f"`{record[0]}`", _text(record[1])] for record in records if record))
    if examples := getattr(command, "examples", ()):
        yield "```text\n" + "\n".join(examples) + "\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            yield from _command(found, context, each, heading + "#")


def _text(text: str) -> str:
    """Return a help text as Markdown, in which angle brackets and stars are characters."""
    return text.replace("<", "\\<").replace("*", "\\*")


def formats_table() -> str:
    """Return the table of formats: extension, commands that read and write it, and what it cannot hold."""
    rows = (
        [
            f"`{name}`",
            f"`{one.suffix}`" if one.suffix else "directory",
            "yes" if one.module else "rows",
            ", ".join(["`convert`"] * bool(one.module) + ["`export`"] * bool(one.compressions)),
            "; ".join(one.lacks) if one.module else "runs with their moves",
        ]
        for name, one in FORMATS.items()
    )
    return table(["format", "extension", "source of `convert`", "written by", "cannot hold"], rows)


def example_code(name: str) -> str:
    """Return the first part of an example as a block of Markdown, without its docstring."""
    part = (CHECKOUT / "examples" / name).read_text().split("# %% ")[1].partition("\n")[2]
    return f"```python\n{part.strip()}\n```\n"


def strengths() -> Iterator[dict[str, Any]]:
    """Yield the measured figures of each player, and the figures that a user chooses by.

    ``rows`` and ``wins`` (games with a 32768) are per core-hour, ``share`` is of rows from such games.
    """
    for line in STRENGTHS.read_text().splitlines():
        one = json.loads(line)
        one |= {"rows": one["moves_per_cpu_s"] * 3600, "wins": 0.0, "share": 0.0}
        if rate := one["reach"]["32768"]:
            moves = one["mean_score"] / one["points_per_move"]
            one |= {"wins": one["rows"] / moves * rate, "share": one["moves_32768"] / moves * rate}
        yield one


def _two(value: float) -> str:
    """Return a number with two significant digits."""
    decimals = 1 - math.floor(math.log10(value)) if value else 0
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def strength_table() -> str:
    """Return the table of players: strength, speed, and the figures that a user chooses by."""
    rows = (
        [
            one["name"],
            f"{one['mean_score']:,.0f} ± {one['mean_score_error']:,.0f}",
            f"{' / '.join(_two(100 * rate) for rate in one['reach'].values())}%",
            f"{_two(one['moves_per_cpu_s'] / 1e6)}M",
            f"{_two(one['rows'] / 1e9)}G",
            _two(one["wins"]),
            f"{_two(100 * one['share'])}%",
        ]
        for one in strengths()
    )
    head = ["`player`", "mean score", "8192 / 16384 / 32768", "moves/s per core", "rows per core-hour"]
    return table([*head, "games with a 32768 per core-hour", "rows from such games"], rows)


def depths() -> Iterator[dict[str, Any]]:
    """Yield the measured figures of each search depth; ``wins`` (games with a 32768) per hour, default 1."""
    found = [json.loads(line) for line in DEPTHS.read_text().splitlines()]
    for one in found:
        one["wins"] = one["speed"] * one["rate"] / one["moves"]
        margin = "" if one["look_margin"] == 1600 else f",look_margin={one['look_margin']:g}"
        one["player"] = f"ntuple:look={one['look']}{margin}"
        one["name"] = f"`{one['player']}`" + (" (default)" if one["player"] == "ntuple:look=3" else "")
        one["best"] = not any(
            other["speed"] > one["speed"] and other["rate"] > one["rate"] for other in found
        )
    for one in found:
        yield one | {"wins": one["wins"] / (found[0]["speed"] * found[0]["rate"] / found[0]["moves"])}


def depth_table() -> str:
    """Return the table of search depths, the fastest first."""
    rows = (
        [
            one["name"],
            f"{one['games']:,}",
            f"{one['mean_score']:,} ± {one['mean_score_error']:,}",
            f"{one['rate']:.1%} ± {one['rate_error']:.1%}",
            f"{one['rows']:.0%}",
            f"{one['speed']:.2f}",
            f"{one['wins']:.2f}",
            "yes" if one["best"] else "",
        ]
        for one in sorted(depths(), key=lambda one: -one["speed"])
    )
    head = ["player", "games", "mean score", "games with a 32768", "rows from these", "speed"]
    return table([*head, "such games per hour", "none is both faster and better"], rows)


def disk_table() -> str:
    """Return what a core that plays all day records, with the players that users choose."""
    days = ((one["player"], one["rows"] * 24) for one in strengths() if one["player"] in DISK_SHOWN)
    rows = (
        [f"`{player}`", f"{_two(day / 1e9)}e9", *(f"{_two(day * size / 1e12)} TB" for size in (1.5, 28))]
        for player, day in days
    )
    return table(["player", "rows per day", "on tape", "as rows"], rows)


def strength_choices() -> str:
    """Return a sentence for each purpose that a user chooses a player for."""
    found = sorted(depths(), key=lambda one: one["rate"])
    most = max(found, key=lambda one: one["wins"])
    usual = next(one for one in found if one["name"].endswith("(default)"))
    fast = [one for one in found if one["speed"] >= 1][-1]
    half = [one for one in found if one["speed"] >= 0.5][-1]
    best = max(strengths(), key=lambda one: one["share"])

    def rate(one: dict[str, Any]) -> str:
        return f"{one['rate']:.1%} ± {one['rate_error']:.1%}"

    return (
        f"- `{most['player']}` gives the most games with a 32768 per hour: {most['wins']:.2f} times as many "
        "as the default.\n"
        f"- `{fast['player']}` is the best of the players that are at least as fast as the default: "
        f"{rate(fast)} of its games reach 32768, and {rate(usual)} of the default's.\n"
        f"- `{half['player']}` is the best with at least half of the default's speed: {rate(half)}.\n"
        f"- `{best['player']}` gives the largest share of rows from games with a 32768.\n"
        "- The default is the player that the shipped critic judges, and whose values are calibrated.\n"
    )


def rows_of(page: str, beginnings: Sequence[str]) -> str:
    """Return a page's first table with those rows only whose first cell begins so."""
    lines = (CHECKOUT / page).read_text().splitlines(keepends=True)
    rows = [line for line in lines if line.startswith("|")]
    shown = [next(row for row in rows if row.startswith(f"| {text}")) for text in beginnings]
    return "".join([*rows[:2], *shown])


_CHART_STYLE = """
rect { fill: #9aa5b1 } .paper { fill: #fff } .own { fill: #c2570c }
text { font: 14px sans-serif; fill: #1f2328 } .title { font-weight: bold } .value { text-anchor: end }
@media (prefers-color-scheme: dark) {
  rect { fill: #6b7683 } .paper { fill: #14181d } .own { fill: #f08a3c } text { fill: #e6edf3 }
}
"""
_UNITS = {"k": 1e3, "M": 1e6}


def licences_table() -> str:
    """Return the licences of all dependencies."""
    rows = ([name, licence_of(name), ", ".join(extras)] for name, extras in needs().items())
    return table(["package", "licence", "needed by"], rows)


def index_for_models() -> str:
    """Return the pages of the documentation by part, as the lists of ``llms.txt``."""
    lines = []
    index = (CHECKOUT / "docs/index.md").read_text()
    for part, names in re.findall(r":caption: (.*)\n\n((?:.+\n)+?)```", index):
        lines.append(f"\n## {part}\n\n")
        for name in names.split():
            path = f"examples/{name}.ipynb" if name.startswith("notebooks/") else f"docs/{name}.md"
            title = re.search(r'^(?: *")?# (.*?)(?:\\n",)?$', (CHECKOUT / path).read_text(), re.MULTILINE)
            lines.append(f"- [{title[1] if title else name.capitalize()}]({path})\n")
    return "".join(lines)


def loaders_chart() -> str:
    """Return a bar chart, in SVG, of the page's table of loaders."""
    page = (CHECKOUT / "docs/explanation/speed.md").read_text()
    rows = (
        page.split("<!-- peers:begin -->")[1].split("\n| random batches")[1].split("\n\n")[0].splitlines()[2:]
    )
    named = [[cell.strip(" `") for cell in row.split("|")[1:3]] for row in rows]
    bars = sorted(((float(text[:-1]) * _UNITS[text[-1]], name, text) for name, text in named), reverse=True)
    width, row, top = 480, 40, 48
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + row * len(bars)}"'
        f' viewBox="0 0 {width} {top + row * len(bars)}" role="img">\n'
        "<title>Random batches of 4,096 labelled boards on one core, rows per second</title>\n"
        f'<style>{_CHART_STYLE}</style>\n<rect class="paper" width="100%" height="100%" rx="8"/>\n'
        '<text class="title" x="16" y="28">Random batches with labels, one core: rows per second</text>\n'
    )
    parts = [head]
    for y, (value, name, text) in zip(range(top, 9999, row), bars, strict=False):
        kind = "own" if name.startswith("tape2048") else "other"
        length = max(1, value / bars[0][0] * (width - 32))
        parts.append(
            f'<text x="16" y="{y + 12}">{html.escape(name.replace("`", ""))}</text>'
            f'<text class="value" x="{width - 16}" y="{y + 12}">{text}</text>'
            f'<rect class="{kind}" x="16" y="{y + 18}" width="{length:.0f}" height="10"/>\n'
        )
    return "".join([*parts, "</svg>\n"])


def depth_chart() -> str:
    """Return a chart, in SVG, of the page's table of search depths."""
    found = sorted(depths(), key=lambda one: -one["rate"])
    width, height, left, top, bottom = 640, 640, 60, 48, 44
    least, most = (limit(one["speed"] for one in found) for limit in (min, max))
    low, high = (round(100 * limit(one["rate"] for one in found)) // 5 * 5 for limit in (min, max))
    high += 5
    wide, tall = width - left - 24, height - top - bottom

    def x_of(speed: float) -> float:
        return left + math.log(speed / least) / math.log(most / least) * (wide - 130)

    def y_of(rate: float) -> float:
        return top + (high - rate) / (high - low) * tall

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">\n'
        "<title>Share of games with a 32768, and speed, by search depth</title>\n"
        f'<style>{_CHART_STYLE}</style>\n<rect class="paper" width="100%" height="100%" rx="8"/>\n'
        '<text class="title" x="16" y="28">Games with a 32768, by speed (the default is 1)</text>\n'
    )
    parts = [head]
    for rate in range(low, high + 1, 5):
        y = y_of(rate)
        parts.append(f'<text class="value" x="{left - 10}" y="{y + 5:.0f}">{rate}%</text>')
        parts.append(f'<rect x="{left}" y="{y:.0f}" width="{wide}" height="1" opacity=".4"/>\n')
    parts += [
        f'<text x="{x_of(speed) - 8:.0f}" y="{height - 16}">{speed:g}</text>\n'
        for speed in (0.125, 0.25, 0.5, 1, 2)
        if least <= speed <= most
    ]
    line = 0.0
    for one in found:
        x, y = x_of(one["speed"]), y_of(100 * one["rate"])
        kind, default = "own" if one["best"] else "other", one["player"] == "ntuple:look=3"
        parts.append(f'<rect class="{kind}" x="{x - 5:.0f}" y="{y - 5:.0f}" width="10" height="10" rx="5"/>')
        if one["best"] or default:
            text = one["player"].removeprefix("ntuple:look=").replace("look_margin=", "margin ")
            text = html.escape(text.replace(",", ", ") + " (default)" * default)
            line = max(y + 5, line + 15)  # labels do not overlap
            parts.append(f'<text x="{x + 9:.0f}" y="{line:.0f}">{text}</text>')
        parts.append("\n")
    return "".join([*parts, "</svg>\n"])


#: The pages with generated parts.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/explanation/strength.md": {
        "players": strength_table,
        "choices": strength_choices,
        "depths": depth_table,
    },
    "docs/explanation/depths.svg": {"chart": depth_chart},
    "README.md": {
        "players": functools.partial(rows_of, "docs/explanation/strength.md", PLAYERS_SHOWN),
    },
    "docs/explanation/loaders.svg": {"chart": loaders_chart},
    "docs/how-to/tape-or-rows.md": {"disk": disk_table},
    "docs/how-to/more-than-outcomes.md": {"example": lambda: example_code("train_on_columns.py")},
    "docs/reference/commands.md": {"commands": commands_reference},
    "docs/reference/settings.md": {
        "recorder": lambda: settings_table(RecorderConfig),
        "retention": lambda: settings_table(RetentionLimits),
        "critic": lambda: settings_table(CriticConfig),
        "ntuple-critic": lambda: settings_table(NTupleCriticConfig),
        "player-training": lambda: settings_table(TrainingConfig),
    },
    "docs/reference/players.md": {"players": players_table},
    "docs/reference/api/loader.md": {"fields": fields_table},
    "docs/reference/formats/index.md": {"formats": formats_table},
    "docs/reference/errors.md": {"errors": errors_table},
    "docs/reference/licences.md": {"licences": licences_table},
    "llms.txt": {"index": index_for_models},
    **{
        f"docs/reference/commands/{name}.md": {"command": functools.partial(command_reference, name)}
        for name in (*cli.lazy, "a2pack")
    },
}


def with_parts(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return a page's text with its generated parts written anew.

    Raises:
        ValueError: a part's markers are missing, repeated or out of order.
    """
    for name, make in parts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        if text.count(begin) != 1 or text.count(end) != 1 or end not in rest:
            message = f"expected one {begin.strip()} with one {end} after it"
            raise ValueError(message)
        text = f"{before}{begin}{make()}{end}{after}"
    return text


if __name__ == "__main__":
    for name, parts in PARTS.items():
        page = CHECKOUT / name
        page.write_text(with_parts(page.read_text(), parts))
