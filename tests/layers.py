"""The packages and their imports, read from the sources, and a picture of them.

    python -m tests.layers          # writes docs/explanation/packages.svg and the list of packages

All imports count: those at load, those inside functions, and those under ``TYPE_CHECKING``.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs/explanation/packages.svg"
PAGE = CHECKOUT / "docs/reference/packages.md"
ROOTS = {"tape2048": "sdk", "tape2048_recorder": "recorder", "tape2048_tools": "tools"}

#: The parts of each package, lowest layer first. A part imports from lower layers only.
LAYERS = {
    "tape2048": [
        "_version", "errors", "base jit", "files game players", "formats ntuple session", "stores packs",
        "loader maintenance", "corpus", "datasets", "conversion critic export runs", "torch",
        "__init__ __main__",
    ],
    "tape2048_recorder": [
        "game ipc", "players retention", "record_options lanes models replay", "evaluation",
        "ntuple_training status", "recording", "daemon workers", "recorder", "fleet", "__init__",
    ],
    "tape2048_tools": [
        "terminal options machine sessions", "progress", "views dataset_card critic_report report viewer",
        "commands", "cli", "__init__ __main__",
    ],
}  # fmt: skip


class Import(NamedTuple):
    """An imported name: its module, its own name, its line, and whether the import runs at load, or never."""

    module: str
    name: str | None
    line: int
    at_load: bool
    for_types: bool = False


@cache
def modules() -> dict[str, Path]:
    """The file of each module of ours."""
    found = {}
    for package, root in ROOTS.items():
        for path in sorted((CHECKOUT / root / package).rglob("*.py")):
            parts = path.relative_to(CHECKOUT / root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(source: str) -> list[Import]:
    """Every import of a source text."""
    found: list[Import] = []

    def visit(node: ast.AST, *, at_load: bool, for_types: bool = False) -> None:
        when = at_load, for_types
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, None, node.lineno, *when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.extend(Import(module, alias.name, node.lineno, *when) for alias in node.names)
        children = [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
        if isinstance(node, ast.If) and re.fullmatch(r"(typing\.)?TYPE_CHECKING", ast.unparse(node.test)):
            for child in node.body:
                visit(child, at_load=False, for_types=True)
            children = list(node.orelse)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at_load = False
        for child in children:
            visit(child, at_load=at_load, for_types=for_types)

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


def closure(*roots: str) -> set[str]:
    """The modules that some modules import at any time, directly or through others, and their packages."""
    known = modules()
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in known or module in found:
            continue
        found.add(module)
        waiting.append(module.rpartition(".")[0])
        for name in imports(known[module].read_text()):
            if not name.for_types:
                waiting += [name.module, f"{name.module}.{name.name}"]
    return found


def package_of(module: str) -> tuple[str, str]:
    """Package and part of a module: ``("tape2048", "session")`` of ``tape2048.files.locks``."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def layer_of(package: str, part: str) -> int | None:
    """The layer of a part, from 0 at the bottom; None if LAYERS lacks it."""
    return next((i for i, members in enumerate(LAYERS[package]) if part in members.split()), None)


def is_init(module: str) -> bool:
    """Whether a module is the ``__init__`` of a package."""
    return modules()[module].name == "__init__.py"


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


def package_arrows(package: str) -> dict[str, set[str]]:
    """The direct imports between the parts of a package (the transitive reduction)."""
    direct: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        if package_of(module)[0] == package and package_of(module)[1] not in {
            "__init__",
            "__main__",
            "_version",
        }:
            mine = direct.setdefault(package_of(module)[1], set())
            mine |= {package_of(target)[1] for target in targets if package_of(target)[0] == package}
            mine -= {package_of(module)[1], "__init__", "_version"}

    @cache
    def below(part: str) -> frozenset[str]:
        return frozenset(direct[part]).union(*(below(each) for each in direct[part]))

    return {part: {a for a in to if not any(a in below(b) for b in to)} for part, to in direct.items()}


def svg() -> str:
    """Draw the layers of each package, the lowest at the bottom, and arrows to what is imported."""
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
    mine = [module for module in modules() if package_of(module)[0] == package and not is_init(module)]
    sizes = Counter(package_of(module)[1] for module in mine)
    direct = package_arrows(package)
    layers = [[part for part in members.split() if part in direct] for members in LAYERS[package]]
    layers = [members for members in layers if members]
    columns = max(map(len, layers))
    place: dict[str, tuple[int, int]] = {}
    for level, members in enumerate(layers):
        x = left + _MARGIN + (columns - len(members)) * _COLUMN // 2
        y = top + 46 + (len(layers) - 1 - level) * _ROW
        place |= {part: (x + i * _COLUMN, y) for i, part in enumerate(members)}
    parts = [f'<text class="title" x="{left + _MARGIN}" y="{top + 28}">{package}</text>']
    for part, targets in direct.items():
        for target in sorted(targets):
            x, y = place[part][0] + _BOX_WIDTH // 2, place[part][1] + _BOX_HEIGHT
            to_x, to_y = place[target][0] + _BOX_WIDTH // 2, place[target][1]
            parts.append(f'<path d="M{x} {y}C{x} {y + 24} {to_x} {to_y - 28} {to_x} {to_y - 6}"/>')
    for part, (x, y) in place.items():
        label = f"{part} · {sizes[part]}" if is_init(f"{package}.{part}") else part
        parts.append(f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>')
        parts.append(f'<text x="{x + _BOX_WIDTH // 2}" y="{y + 22}">{label}</text>')
    return parts, left + columns * _COLUMN + 2 * _MARGIN, top + 46 + len(layers) * _ROW


def with_packages(page: str) -> str:
    """Put the tables of parts, highest layer first, into the page on the architecture."""
    lines = []
    for package, root in ROOTS.items():
        lines += ["", f"| `{root}/{package}` | contents |", "|---|---|"]
        for members in reversed(LAYERS[package]):
            named = [part for part in members.split() if not part.startswith("_")]
            for name in [f"{package}.{part}" for part in named if f"{package}.{part}" in modules()]:
                text = ast.get_docstring(ast.parse(modules()[name].read_text())) or ""
                lines.append(f"| `{name.rpartition('.')[2]}` | {text.partition(chr(10))[0]} |")
    head, _, rest = page.partition("<!-- packages:begin -->\n")
    _, end, tail = rest.partition("\n<!-- packages:end -->")
    return head + "<!-- packages:begin -->\n" + "\n".join(lines[1:]) + end + tail


if __name__ == "__main__":
    PICTURE.write_text(svg())
    PAGE.write_text(with_packages(PAGE.read_text()))
