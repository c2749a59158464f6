"""The rules of the architecture: imports, small modules, what loads when, names, error classes."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from tape2048 import errors

from .layers import (
    CHECKOUT,
    PAGE,
    ROOTS,
    arrows,
    closure,
    imports,
    is_init,
    layer_of,
    modules,
    package_of,
    with_packages,
)  # fmt: skip
from .pages import error_tree

#: Packages that each package may import, itself included.
MAY_IMPORT = {
    "tape2048": {"tape2048"},
    "tape2048_recorder": {"tape2048", "tape2048_recorder"},
    "tape2048_tools": {"tape2048", "tape2048_recorder", "tape2048_tools"},
}
#: The SDK's packages that the recorder does without: it writes sessions, and loads no batches.
NOT_FOR_THE_RECORDER = {"corpus", "critic", "runs", "torch"}
#: Modules of these packages that it needs: critics choose moves, and learn from games that it plays; whole
#: games of sessions are judged.
FOR_THE_RECORDER = (
    "tape2048.critic.critic_config.", "tape2048.critic.shipped.", "tape2048.critic.ntuple.",
    "tape2048.runs.sessions.",
)  # fmt: skip

#: A module below this that only one other module of its package imports is part of that module.
OWN_FILE_LINES_MIN = 60

#: Packages that take long to load or are not always installed, and where they are imported at load (a path's
#: beginning is enough). Everywhere else they are imported inside functions.
HEAVY = {
    "numba": (
        "sdk/tape2048/jit/",
        "sdk/tape2048/game/",
        "sdk/tape2048/critic/ntuple/ntuple_critic.py",
        "sdk/tape2048/ntuple/lookup.py",
        "sdk/tape2048/ntuple/outcomes.py",
        "sdk/tape2048/runs/a2run2_codec.py",
        "sdk/tape2048/loader/boards.py",
        "sdk/tape2048/session/tape_codec.py",
        "sdk/tape2048/loader/",
        "recorder/tape2048_recorder/game/",
        "recorder/tape2048_recorder/players/",
        "recorder/tape2048_recorder/ntuple_training/learning.py",
        "recorder/tape2048_recorder/ntuple_training/gpu_learner.py",
        "recorder/tape2048_recorder/lanes/",
        "recorder/tape2048_recorder/ntuple_training/pruning.py",
    ),
    "click": ("tools/tape2048_tools/",),
    "torch": ("sdk/tape2048/torch/", "recorder/tape2048_recorder/models/torch_player.py"),
    "onnxruntime": ("recorder/tape2048_recorder/models/onnx_player.py",),
    "pyarrow": (),
    "prometheus_client": ("recorder/tape2048_recorder/status/prometheus.py",),
} | dict.fromkeys(
    [
        "lz4",
        "huggingface_hub",
        "matplotlib",
        "ray",
        "rich",
        "obstore",
        "safetensors",
        "scipy",
        "sklearn",
        "wandb",
        "zstandard",
    ],
    (),
)

#: What modules must not load, however it comes about, when they are imported in a fresh process. No command
#: loads what is heavy before it runs.
_HEAVIEST = "numba rich torch scipy sklearn matplotlib pyarrow obstore ray lz4 zstandard"
LOADS_WITHOUT = {
    _HEAVIEST: [
        *(name for name in modules() if name.startswith("tape2048_tools.commands.")),
        "tape2048_tools.sessions.session_jobs",
    ],
    f"{_HEAVIEST} click": [
        "tape2048", "tape2048_recorder.record_options", "tape2048.runs.a2pack", "tape2048.stores.objects",
        "tape2048.stores.remote", "tape2048.runs.exports", "tape2048.runs.conversion",
        "tape2048.ntuple.network", "tape2048.critic.critic_config", "tape2048_recorder.players.options",
        "tape2048_recorder.replay.replay",
    ],
    "numpy msgspec tape2048": ["tape2048_tools.cli"],
    "obstore ray rich click scipy torch": ["tape2048_recorder.recorder"],
    "rich click torch sklearn": [
        "tape2048_recorder.evaluation.evaluated_games", "tape2048.critic.metrics",
        "tape2048.critic.ntuple.ntuple_critic",
    ],
}  # fmt: skip

#: Small modules that stand alone on purpose, with the reason.
SMALL_MODULES: dict[str, str] = {}


#: Most lines that the modules of an entry point reach by imports, with at most 5% of room.
LINES_MAX = {
    ("tape2048_recorder.recorder", "tape2048_recorder.workers.__main__"): 18_500,
    ("tape2048.session.session",): 7_220,
    ("tape2048.corpus",): 16_700,
    ("tape2048_tools.commands.recorder.record",): 21_000,
    ("tape2048_tools.commands.sessions.validate",): 14_500,
    ("tape2048_tools.commands.sessions.show",): 14_020,
}


@pytest.mark.parametrize("roots", LINES_MAX, ids=lambda roots: roots[0].rpartition(".")[2])
def test_an_entry_point_imports_what_it_uses(roots: tuple[str, ...]) -> None:
    lines = {module: modules()[module].read_text().count("\n") for module in closure(*roots)}
    largest = ", ".join(sorted(lines, key=lambda module: -lines[module])[:10])
    assert set(roots) <= set(lines)
    total = sum(lines.values())
    assert total <= LINES_MAX[roots], f"the largest modules: {largest}"


def test_show_and_validate_import_no_recorder() -> None:
    """A command that looks at sessions reads the recorder's settings, and nothing else of it."""
    for command in ("show", "validate"):
        found = {package_of(module) for module in closure(f"tape2048_tools.commands.sessions.{command}")}
        recorder = {part for package, part in found if package == "tape2048_recorder"}
        assert recorder <= {"__init__", "players", "record_options", "retention"}, command


def test_what_is_imported_by_name_exists() -> None:
    """Tables hold "module:name" of what is imported when it is chosen."""
    named = {
        (package_of(module)[0], *found)
        for module, path in modules().items()
        for found in re.findall(r'"(tape2048[a-z_0-9.]*):(\w+)"', path.read_text())
    }
    assert len(named) > 5
    for package, module, name in named:
        assert package_of(module)[0] in MAY_IMPORT[package], module
        defined = ast.parse(modules()[module].read_text()).body
        exported = {found.name for found in imports(modules()[module].read_text())}
        assert name in exported | {getattr(one, "name", None) for one in defined}, f"{module}:{name}"


def test_every_package_has_a_layer() -> None:
    packages = {package_of(module) for module in modules()}
    assert not {
        f"{package}.{subpackage}" for package, subpackage in packages if layer_of(package, subpackage) is None
    }


def test_imports_point_to_lower_layers() -> None:
    wrong = []
    for module, targets in arrows().items():
        package, subpackage = package_of(module)
        if module == "tape2048.__main__":  # `python -m tape2048` hands over to the command
            continue
        for target in sorted(targets):
            other_package, other = package_of(target)
            if other_package != package:
                allowed = other_package in MAY_IMPORT[package]
            else:
                layer, below = layer_of(package, subpackage), layer_of(package, other)
                allowed = other == subpackage or (layer is not None and below is not None and below < layer)
            if not allowed:
                wrong.append(f"{module} -> {target}")
    assert not wrong


def test_no_imports_go_in_a_circle() -> None:
    inner = {
        module: {target for target in targets if not is_init(target)}
        for module, targets in arrows().items()
        if not is_init(module)
    }
    graphlib.TopologicalSorter(inner).prepare()  # CycleError names the circle


def test_private_parts_stay_private() -> None:
    """Rooms keep their private parts and the recorder loads no batches."""
    wrong = []
    for module, path in modules().items():
        for found in imports(path.read_text()):
            package, subpackage = package_of(found.module)
            if (
                package not in ROOTS
                or (package, subpackage) == package_of(module)
                or subpackage == "_version"
            ):
                continue
            last = found.module.rpartition(".")[2]
            if last.startswith("_") or re.match(r"_[a-z]", found.name or ""):
                wrong.append(f"{module}:{found.line}: {found.module}.{found.name} is private to its package")
            if (
                package == "tape2048"
                and module.startswith("tape2048_recorder")
                and subpackage in NOT_FOR_THE_RECORDER
                and not f"{found.module}.".startswith(FOR_THE_RECORDER)
            ):
                wrong.append(f"{module}:{found.line}: {found.module} is not for the recorder")
    assert not wrong


def test_a_small_module_has_several_importers() -> None:
    lines = {
        module: path.read_text().count("\n") for module, path in modules().items() if not is_init(module)
    }
    small = []
    for module, count in lines.items():
        importers = [other for other, targets in arrows().items() if module in targets and not is_init(other)]
        alone = len(importers) == 1 and package_of(importers[0]) == package_of(module)
        if alone and count < OWN_FILE_LINES_MIN and module not in SMALL_MODULES:
            small.append(f"{module} ({count} lines) belongs to {importers[0]}")
    assert not small


def test_a_module_does_not_hide_an_export_of_its_name() -> None:
    """Once such a module is loaded, it is an attribute of its package."""
    for module, path in modules().items():
        if is_init(module):
            source = path.read_text()
            assert ast.get_docstring(ast.parse(source)), f"{module} has no docstring"
            exported = {found.name for found in imports(source) if found.module.startswith(f"{module}.")}
            assert not {name for name in exported - {"lazy"} if f"{module}.{name}" in modules()}, module


def test_heavy_packages_are_imported_late() -> None:
    """Heavy packages are imported where they are needed."""
    wrong = []
    for path in modules().values():
        place = path.relative_to(CHECKOUT).as_posix()
        for found in imports(path.read_text()):
            package = found.module.partition(".")[0]
            if found.at_load and package in HEAVY and not place.startswith(HEAVY[package] or ("?",)):
                wrong.append(f"{place}:{found.line}: {package}")
    assert not wrong
    assert all((CHECKOUT / path).exists() for paths in HEAVY.values() for path in paths)


def test_the_walk_sees_every_import() -> None:
    source = """
import os, rich.console
from tape2048 import errors
from . import x
def f():
    import torch
    async def g(): import click
class A:
    from numba import njit
if TYPE_CHECKING:
    import pyarrow
else:
    import sklearn
"""
    at_load = {"os", "rich.console", "tape2048", "numba", "sklearn", "."}
    assert {found.module for found in imports(source) if found.at_load} == at_load
    assert {found.module for found in imports(source) if not found.at_load} == {"torch", "click", "pyarrow"}


def test_the_page_lists_the_packages() -> None:
    assert PAGE.read_text() == with_packages(PAGE.read_text()), "run: make generate"


def test_modules_load_without_heavy_packages() -> None:
    code = """
import importlib, sys
packages, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
    if loaded := sys.modules.keys() & set(packages.split()):
        sys.exit(f"{name} loads {loaded}")
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(CHECKOUT / tree) for tree in ROOTS.values()),
    }
    for packages, names in LOADS_WITHOUT.items():
        command = [sys.executable, "-c", code, packages, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.stderr, done.returncode) == ("", 0)


def test_every_error_is_described_in_its_class() -> None:
    classes = [value for name, value in vars(errors).items() if name.endswith("Error")]
    assert set(classes) == set(error_tree())
    assert all(kind.__doc__ for kind in classes)


def test_exit_codes_group_the_errors() -> None:
    codes = {kind.exit_code for kind in error_tree()}
    assert len(codes) <= 12
    assert codes.isdisjoint({0, 2, 130, 141}), "success, wrong usage, interrupted, broken pipe"
    assert all(0 < code < 126 for code in codes), "a shell keeps the others for itself"


def test_every_error_is_defined_in_one_place() -> None:
    for path in modules().values():
        found = re.findall(r"^ *class ([A-Z]\w*Error)\b", path.read_text(), re.MULTILINE)
        assert path.name == "errors.py" or not found, f"{path}: {found}"


def test_a_class_name_means_one_thing() -> None:
    """No two modules have a class of one name, be it private."""
    text = "\n".join(path.read_text() for path in modules().values())
    count = Counter(re.findall(r"^class (\w+)", text, re.MULTILINE))
    assert not {name for name, times in count.items() if times > 1}
