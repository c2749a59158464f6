"""The packages and their imports, read from the sources.

    python -m tests.layers          # writes docs/reference/packages.md

All imports count: those at load, those inside functions, and those under ``TYPE_CHECKING``.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs/reference/packages.md"
ROOTS = {"tape2048": "sdk", "tape2048_recorder": "recorder", "tape2048_tools": "tools"}

#: The parts of each package, lowest layer first. A part imports from lower layers only.
LAYERS = {
    "tape2048": [
        "_version", "errors", "base jit", "files game search_depth short_names", "players",
        "ntuple session", "stores", "loader maintenance", "corpus", "critic runs", "torch",
        "__init__ __main__",
    ],
    "tape2048_recorder": [
        "game ipc", "players retention", "record_options lanes models replay", "evaluation",
        "ntuple_training status", "recording", "daemon shipping workers", "recorder", "__init__",
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


def with_packages(page: str) -> str:
    """Put the tables of parts, highest layer first, into their page."""
    lines = []
    for package, root in ROOTS.items():
        lines += ["", f"| `{root}/{package}` | contents | imports |", "|---|---|---|"]
        below = package_arrows(package)
        for members in reversed(LAYERS[package]):
            named = [part for part in members.split() if not part.startswith("_")]
            for name in [f"{package}.{part}" for part in named if f"{package}.{part}" in modules()]:
                text = ast.get_docstring(ast.parse(modules()[name].read_text())) or ""
                part = name.rpartition(".")[2]
                targets = ", ".join(f"`{each}`" for each in sorted(below[part])) or " "
                file = part if is_init(name) else f"{part}.py"
                title = text.partition("\n")[0]
                lines.append(f"| `{file}` | {title} | {targets} |".replace("|   |", "| |"))
    head, _, rest = page.partition("<!-- packages:begin -->\n")
    _, end, tail = rest.partition("\n<!-- packages:end -->")
    return head + "<!-- packages:begin -->\n" + "\n".join(lines[1:]) + end + tail


if __name__ == "__main__":
    PAGE.write_text(with_packages(PAGE.read_text()))
