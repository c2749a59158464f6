"""What no single module can promise: who imports whom, what loads when, lengths, exit codes."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tape2048 import errors
from tape2048_tools.options.reference import error_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[1]

#: The rooms, and what of ours each may import.
MAY_IMPORT = {
    "tape2048": {"tape2048"},
    "tape2048_recorder": {"tape2048", "tape2048_recorder"},
    "tape2048_tools": {"tape2048", "tape2048_recorder", "tape2048_tools"},
}
ROOTS = {"tape2048": "sdk", "tape2048_recorder": "recorder", "tape2048_tools": "tools"}

#: Packages that take long to load or are not always installed, and the modules that may import them where
#: they begin (a path's beginning is enough); everywhere else they are imported inside functions.
HEAVY = {
    "numba": (
        "sdk/tape2048/jit/intrinsics.py",
        "sdk/tape2048/store/packed_boards.py",
        "sdk/tape2048/batches/gather_kernel.py",
        "sdk/tape2048/jit/compiler.py",
        "sdk/tape2048/batches/lookup.py",
        "sdk/tape2048/game/moves.py",
        "sdk/tape2048/datasets/records.py",
        "sdk/tape2048/datasets/verify.py",
        "sdk/tape2048/runs/a2run2_codec.py",
        "sdk/tape2048/game/rules.py",
        "sdk/tape2048/batches/shuffle.py",
        "recorder/tape2048_recorder/game/engine.py",
        "recorder/tape2048_recorder/game/loop.py",
        "recorder/tape2048_recorder/game/rng.py",
        "recorder/tape2048_recorder/lanes/",
        "sdk/tape2048/ntuple/images.py",
        "sdk/tape2048/ntuple/lookup.py",
        "recorder/tape2048_recorder/ntuple_training/learning.py",
        "recorder/tape2048_recorder/players/",
    ),
    "rich": (),
    "click": ("tools/tape2048_tools/",),
    "torch": ("sdk/tape2048/torch", "recorder/tape2048_recorder/models/torch_player.py"),
    "onnxruntime": ("recorder/tape2048_recorder/models/onnx_player.py",),
    "scipy": (),
    "matplotlib": (),
    "pyarrow": ("sdk/tape2048/export/arrow.py",),
    "zstandard": (),
    "prometheus_client": (),
    "sklearn": (),
    "safetensors": (),
    "wandb": (),
}

#: What a module must not load, however it comes about, when it is imported in a fresh process.
LOADS_WITHOUT = {
    "tape2048": ("numba", "rich", "click", "scipy", "torch"),
    "tape2048_recorder.config.loading": ("numba", "rich", "click", "scipy", "torch"),
    "tape2048_tools.cli": ("numba", "rich", "numpy", "msgspec", "tape2048", "scipy", "torch"),
    "tape2048_tools.commands.recorder.record": ("numba", "rich", "scipy", "torch"),
    "tape2048_tools.commands.players.player": ("numba", "rich", "scipy", "torch"),
    "tape2048_tools.commands.players.bench": ("numba", "numpy", "rich", "scipy", "torch"),
    "tape2048_tools.commands.players.train": ("numba", "rich", "scipy", "torch"),
    "tape2048_recorder.players.ntuple_arguments": ("numba", "rich", "click", "torch"),
    "tape2048.ntuple.files": ("numba", "rich", "click", "torch"),
    "tape2048_tools.commands.recorder.config": ("numba", "rich", "scipy", "torch"),
    "tape2048_tools.commands.sessions.listing": ("numba", "rich", "scipy", "torch"),
    "tape2048_tools.commands.sessions.export": ("numba", "rich", "numpy", "pyarrow", "torch"),
    "tape2048.export.write": ("numba", "rich", "pyarrow", "torch"),
    "tape2048_tools.commands.critic.group": ("numba", "numpy", "rich", "torch"),
    "tape2048_tools.commands.critic.train": ("numba", "rich", "scipy", "torch"),
    "tape2048_tools.commands.critic.eval": ("numba", "numpy", "rich", "torch", "sklearn", "matplotlib"),
    "tape2048_tools.commands.critic.score": ("numba", "numpy", "rich", "torch"),
    "tape2048.critic.metrics": ("numba", "rich", "torch", "sklearn"),
    "tape2048_tools.commands.critic.embed": ("numba", "numpy", "rich", "torch"),
    "tape2048.critic.config": ("numba", "rich", "torch"),
    "tape2048_tools.commands.runs.pack": ("numba", "numpy", "rich", "zstandard"),
    "tape2048.packs.reader": ("numba", "rich", "zstandard"),
}

#: Past this a module is two modules.
LINES_MAX = 500


class Import(NamedTuple):
    """An import statement: the package's first name, the line, and whether it runs when the module loads."""

    package: str
    line: int
    at_load: bool


def modules() -> list[Path]:
    return sorted(path for root in ROOTS.values() for path in (CHECKOUT / root).rglob("*.py"))


def imports(source: str, package: str) -> Iterator[Import]:
    """Every import of a module, inside functions too; those for type checkers alone are left out."""

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name.split(".")[0], node.lineno, at_load)
        elif isinstance(node, ast.ImportFrom):
            module = package if node.level else str(node.module)
            yield Import(module.split(".")[0], node.lineno, at_load)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in children:
            yield from visit(child, at_load and not is_function)

    yield from visit(ast.parse(source), at_load=True)


def arrows_back(source: str, package: str) -> list[str]:
    ours = set(MAY_IMPORT) - MAY_IMPORT[package]
    return [
        f"line {found.line}: {found.package}" for found in imports(source, package) if found.package in ours
    ]


def loads_heavy(source: str, path: str) -> list[str]:
    return [
        f"line {found.line}: {found.package}"
        for found in imports(source, path.split("/")[1])
        if found.at_load and found.package in HEAVY and not path.startswith(HEAVY[found.package] or ("?",))
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_module_keeps_to_its_room(path: Path) -> None:
    source = path.read_text()
    relative = path.relative_to(CHECKOUT).as_posix()
    assert not arrows_back(source, relative.split("/")[1]), "arrows go recorder -> sdk, tools -> both"
    assert not loads_heavy(source, relative), "import it inside the function that needs it"
    assert source.count("\n") <= LINES_MAX, "a module this long is two modules"


@pytest.mark.parametrize(
    ("source", "back", "heavy"),
    [
        ("import tape2048_recorder.game.engine", 1, 0),
        ("from tape2048_tools import cli", 1, 0),
        ("def f():\n    import tape2048_recorder", 1, 0),
        ("import os, rich.console", 0, 1),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", 0, 1),
        ("class A:\n    from numba import njit", 0, 1),
        ("def f():\n    from numba import njit\nasync def g():\n    import click", 0, 0),
        ("if TYPE_CHECKING:\n    import rich\n    import tape2048_tools", 0, 0),
        ("if not typing.TYPE_CHECKING:\n    pass\nelse:\n    import rich", 0, 1),
        ("from . import errors\nfrom .rules import x\nimport numpy, tape2048", 0, 0),
    ],
)
def test_the_walk_sees_what_it_is_for(source: str, back: int, heavy: int) -> None:
    assert len(arrows_back(source, "tape2048")) == back
    assert len(loads_heavy(source, "sdk/tape2048/session/session.py")) == heavy


def test_the_modules_that_may_load_what_is_heavy_exist() -> None:
    for package, allowed in HEAVY.items():
        for path in allowed:
            assert package == "torch" or (CHECKOUT / path).exists(), path


@pytest.mark.parametrize(("module", "forbidden"), LOADS_WITHOUT.items(), ids=list(LOADS_WITHOUT))
def test_a_module_loads_without(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {forbidden!r} if name in sys.modules])"
    rooms = os.pathsep.join(str(CHECKOUT / room) for room in ROOTS.values())
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": rooms},
    )  # fmt: skip
    assert done.stdout.split() == []


def test_a_source_distribution_has_what_its_makefile_and_tests_need() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/Makefile", "/conftest.py", "/constraints.txt", "/tests", "/README.md"} <= set(included)


# --- errors


def test_every_error_is_described_in_its_class() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert set(classes) == set(error_tree())
    assert all(kind.__doc__ for kind in classes)


def test_exit_codes_tell_errors_apart() -> None:
    taken = {0: "success", 2: "wrong usage", 130: "interrupted", 141: "broken pipe"}
    for kind in error_tree():
        if "exit_code" not in vars(kind):  # the same trouble as the class above it, said more exactly
            continue
        assert kind.exit_code not in taken, (kind, taken[kind.exit_code])
        taken[kind.exit_code] = kind.__name__
        assert 0 < kind.exit_code < 126, "a shell keeps the others for itself"


def test_every_error_is_defined_in_one_place() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and re.match(r"[A-Z].*Error$", node.name):
                assert path.name == "errors.py", f"{path}: {node.name}"
