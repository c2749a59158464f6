"""The rooms of the house and their imports, read from the sources; and their picture.

    python -m tests.rooms          # writes docs/explanation/rooms.svg and the list of rooms beside it

All imports count: those at load, those inside functions, and those under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs/explanation/rooms.svg"
PAGE = CHECKOUT / "docs/explanation/architecture.md"
ROOTS = {"tape2048": "sdk", "tape2048_recorder": "recorder", "tape2048_tools": "tools"}

#: The rooms of each package, lowest floor first. A room imports lower floors only; rooms of one floor do not
#: know each other.
FLOORS = {
    "tape2048": [
        "errors _version", "base jit", "io settings game", "formats training", "selection", "tape ntuple",
        "runs session",
        "packs maintenance rows datasets", "conversion batches", "corpus", "export critic", "torch",
        "__init__ __main__",
    ],
    "tape2048_recorder": [
        "game ipc", "players", "config evaluation lanes models replay", "ntuple_training status",
        "recording", "daemon workers", "recorder", "fleet", "__init__",
    ],
    "tape2048_tools": [
        "terminal options machine sessions", "progress", "views critic_report report viewer", "commands",
        "cli", "__init__ __main__",
    ],
}  # fmt: skip


class Import(NamedTuple):
    """An imported name: its module, its own name, its line, and whether the import runs at load."""

    module: str
    name: str | None
    line: int
    at_load: bool


@cache
def modules() -> dict[str, Path]:
    """The file of each module of ours."""
    found = {}
    for package, root in ROOTS.items():
        for path in sorted((CHECKOUT / root / package).rglob("*.py")):
            parts = path.relative_to(CHECKOUT / root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str) -> list[Import]:
    """Every import of a source text."""
    found: list[Import] = []

    def visit(node: ast.AST, *, at_load: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, None, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.extend(Import(module, alias.name, node.lineno, at_load) for alias in node.names)
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and re.fullmatch(r"(typing\.)?TYPE_CHECKING", ast.unparse(node.test)):
            for child in node.body:
                visit(child, at_load=False)
            children = list(node.orelse)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_load = False
        for child in children:
            visit(child, at_load=at_load)

    visit(ast.parse(source), at_load=True)
    return found


@cache
def arrows() -> dict[str, set[str]]:
    """The modules of ours that each module imports."""
    known = modules()
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        names = imports(path.read_text())
        targets = {each if (each := f"{name.module}.{name.name}") in known else name.module for name in names}
        found[module] = {target for target in targets if target in known and target != module}
    return found


def room_of(module: str) -> tuple[str, str]:
    """Package and room of a module: ``("tape2048", "session")`` of ``tape2048.session.locks``."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def floor_of(package: str, room: str) -> int | None:
    """The floor of a room, the lowest 0; None where the plan does not have the room."""
    return next((i for i, rooms in enumerate(FLOORS[package]) if room in rooms.split()), None)


def is_face(module: str) -> bool:
    """Whether a module is the ``__init__`` of a package."""
    return modules()[module].name == "__init__.py"


# --- the picture

_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _ROW, _MARGIN = 124, 34, 140, 66, 14
#: Packages side by side, and one below the other.
_COLUMNS = (("tape2048",), ("tape2048_tools", "tape2048_recorder"))
_STYLE = (
    "text{font:13px sans-serif;fill:#222;text-anchor:middle}.title{font-weight:bold;text-anchor:start}"
    "rect{fill:#f4f1ea;stroke:#8a8376}.paper{fill:#fff;stroke:none}"
    "path{fill:none;stroke:#8a8376;stroke-opacity:.7;marker-end:url(#tip)}"
)
_TIP = (
    '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="3" refY="3" orient="auto">'
    '<path d="M0 0L6 3L0 6z" style="fill:#8a8376;marker-end:none"/></marker></defs>\n'
)


def room_arrows(package: str) -> dict[str, set[str]]:
    """The rooms that each room of a package imports directly (the transitive reduction)."""
    direct: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        if room_of(module)[0] == package and room_of(module)[1] not in {"__init__", "__main__", "_version"}:
            mine = direct.setdefault(room_of(module)[1], set())
            mine |= {room_of(target)[1] for target in targets if room_of(target)[0] == package}
            mine -= {room_of(module)[1], "__init__", "_version"}

    @cache
    def below(room: str) -> frozenset[str]:
        return frozenset(direct[room]).union(*(below(each) for each in direct[room]))

    return {room: {a for a in to if not any(a in below(b) for b in to)} for room, to in direct.items()}


def svg() -> str:
    """Draw the picture: floors of each package, the lowest at the bottom, and arrows to imported rooms."""
    parts: list[str] = []
    left = height = 0
    for packages in _COLUMNS:
        top = width = 0
        for package in packages:
            drawn, right, bottom = _draw(package, left, top)
            parts += drawn
            top, width = bottom, max(width, right - left)
        left, height = left + width, max(height, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left} {height}">\n'
        f'<style>{_STYLE}</style>\n{_TIP}<rect class="paper" width="{left}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _draw(package: str, left: int, top: int) -> tuple[list[str], int, int]:
    """Draw a package with its upper left corner at a place; also where it ends."""
    mine = [module for module in modules() if room_of(module)[0] == package and not is_face(module)]
    sizes = Counter(room_of(module)[1] for module in mine)
    direct = room_arrows(package)
    floors = [[room for room in rooms.split() if room in direct] for rooms in FLOORS[package]]
    floors = [rooms for rooms in floors if rooms]
    columns = max(map(len, floors))
    place: dict[str, tuple[int, int]] = {}
    for level, rooms in enumerate(floors):
        x = left + _MARGIN + (columns - len(rooms)) * _COLUMN // 2
        y = top + 46 + (len(floors) - 1 - level) * _ROW
        place |= {room: (x + i * _COLUMN, y) for i, room in enumerate(rooms)}
    parts = [f'<text class="title" x="{left + _MARGIN}" y="{top + 28}">{package}</text>']
    for room, targets in direct.items():
        for target in sorted(targets):
            x, y = place[room][0] + _BOX_WIDTH // 2, place[room][1] + _BOX_HEIGHT
            to_x, to_y = place[target][0] + _BOX_WIDTH // 2, place[target][1]
            parts.append(f'<path d="M{x} {y}C{x} {y + 24} {to_x} {to_y - 28} {to_x} {to_y - 6}"/>')
    for room, (x, y) in place.items():
        label = f"{room} · {sizes[room]}" if is_face(f"{package}.{room}") else room
        parts.append(f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>')
        parts.append(f'<text x="{x + _BOX_WIDTH // 2}" y="{y + 22}">{label}</text>')
    return parts, left + columns * _COLUMN + 2 * _MARGIN, top + 46 + len(floors) * _ROW


def with_rooms(page: str) -> str:
    """The page on the architecture with the list of rooms, lowest floor last, in its place."""
    lines = []
    for package, root in ROOTS.items():
        lines += ["", f"**`{root}/{package}`**", ""]
        for rooms in reversed(FLOORS[package]):
            named = [room for room in rooms.split() if not room.startswith("_")]
            for name in [f"{package}.{room}" for room in named if f"{package}.{room}" in modules()]:
                text = ast.get_docstring(ast.parse(modules()[name].read_text())) or ""
                lines.append(f"- `{name.rpartition('.')[2]}`: {text.partition(chr(10))[0]}")
    head, _, rest = page.partition("<!-- rooms:begin -->\n")
    _, end, tail = rest.partition("\n<!-- rooms:end -->")
    return head + "<!-- rooms:begin -->\n" + "\n".join(lines[1:]) + end + tail


if __name__ == "__main__":
    PICTURE.write_text(svg())
    PAGE.write_text(with_rooms(PAGE.read_text()))
