import copy
import enum
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import tape2048
from tape2048 import Corpus
from tape2048.loader.options import DEFAULTS, BatchOptions

from .corpora import build

FOUND = [found.name for found in pkgutil.walk_packages(tape2048.__path__, "tape2048.")]
MODULES = ["tape2048", *(name for name in FOUND if "._" not in name)]


def test_import_is_light() -> None:
    """The names load NumPy and msgspec, and nothing heavier: these would each add from 30 ms to seconds."""
    code = "import sys; from tape2048 import *; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"numpy", "msgspec", "tape2048"} <= loaded
    heavy = {
        "numba", "llvmlite", "rich", "click", "torch", "scipy", "crc32c", "multiprocessing", "asyncio",
        "email",
    }  # fmt: skip
    assert not loaded & heavy


def test_without_its_package_a_module_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [module for module in sys.modules if f"{module}.".startswith("tape2048.torch.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"tape2048.torch needs torch, .*'tape2048\[torch\]'"
    with pytest.raises(ModuleNotFoundError, match=message) as caught:
        importlib.import_module("tape2048.torch")
    assert caught.value.name == "torch"


def test_every_export_is_documented() -> None:
    """A function has an example and names its arguments; so has a class, unless it only holds results."""
    problems = []
    for module in map(importlib.import_module, MODULES):
        problems += [] if module.__doc__ else [module.__name__]
        for exported in getattr(module, "__all__", ()):
            value = getattr(module, exported)
            value = getattr(value, "py_func", value)  # a kernel's function
            text = inspect.getdoc(value) or ""
            holds = inspect.isclass(value) and issubclass(value, tuple | enum.Enum)
            many = inspect.isfunction(value) and len(inspect.signature(value).parameters) > 1
            if callable(value) and not (text and (holds or ">>> " in text) and ("Args:" in text or not many)):
                problems.append(f"{module.__name__}.{exported}")
    assert problems == []


def test_batch_options_are_those_of_batches() -> None:
    """A caller rejects other keywords at once."""
    assert DEFAULTS.keys() == BatchOptions.__annotations__.keys()
    with pytest.raises(TypeError, match=r"batches\(\) got an unexpected keyword argument 'batchsize'"):
        Corpus.batches(None, batchsize=3)  # type: ignore[arg-type, call-arg]
    torch = pytest.importorskip("tape2048.torch")
    for given, answer in (
        ("batchsize", "nearest is 'batch_size'"), ("prefetsh", "nearest is 'prefetch'"),
        ("keep", "nearest is 'seed'"), ("epochs", "for epoch in range"), ("num_workers", "threads=2"),
    ):  # fmt: skip
        found = rf"CriticLoader\(\) got an unexpected keyword argument '{given}'. .*{answer}"
        with pytest.raises(TypeError, match=found):
            torch.CriticLoader(None, **{given: 3})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Corpus.batches", {"batch_size": 4096, "seed": 0, "augment": None, "label_dtype": "bool"}),
        ("Capped.batches", {"batch_size": 4096, "fields": ("tokens", "labels"), "shuffle": True}),
        ("Mixture.batches", {"seed": 0, "weight": None}),
        ("loader.Batches", {"seed": 0, "pad": True}),
        ("torch.CriticLoader", {"seed": 0, "label_dtype": "float32", "threads": 1, "augment": None}),
        ("torch.as_torch_dataset", {"map_style": True, "batch_size": 4096, "label_dtype": "float32"}),
        ("Corpus.open", {"load": "auto", "min_score": None, "player": None}),
        ("Corpus.where", {"min_highest_tile": None, "until": None}),
    ],
)
def test_a_signature_and_a_docstring_list_the_options(name: str, shown: dict[str, Any]) -> None:
    """As a notebook shows them."""
    package, _, rest = name.partition(".")
    value: Any = importlib.import_module(f"tape2048.{package}") if package.islower() else tape2048
    for part in (rest if package.islower() else name).split("."):
        value = getattr(value, part)
    parameters, text = inspect.signature(value).parameters, inspect.getdoc(value) or ""
    assert shown.items() <= {key: each.default for key, each in parameters.items()}.items()
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for key in shown:
        assert re.search(rf"\b{key}\b.*: ", text), key
    assert "\n    **" not in text


@pytest.mark.parametrize(
    ("use", "meant"),
    [
        (lambda corpus: corpus.split(0.8), r"split\(train=0\.8, val=0\.2\)"),
        (
            lambda corpus: corpus.split(train=0.5, val=0.5)["valid"],
            r"has 'train', 'val'. Write split\(",
        ),
        (lambda corpus: corpus.phase("late"), r"phase\('late'\).* phase\(fraction=\(0\.67, None\)\)"),
    ],
)
def test_a_guessed_call_is_answered_with_the_call(tmp_path: Path, use: Any, meant: str) -> None:
    with pytest.raises((TypeError, KeyError), match=meant):
        use(Corpus.open(build(tmp_path).root))


class TestErrors:
    def test_a_name_leads_to_its_class(self) -> None:
        """Processes and reports tell each other of errors by name."""
        assert tape2048.errors.error_class("DiskFullError") is tape2048.errors.DiskFullError
        for foreign in ("ZeroDivisionError", "ClassVar", "error_class", ""):
            assert tape2048.errors.error_class(foreign) is tape2048.errors.TapeError

    def test_message_says_where(self) -> None:
        error = tape2048.errors.FormatError("bad", path="/x", offset=3, hint="do")
        assert str(error) == "/x: bad (at byte 3)"
        assert (error.message, error.path, error.offset, error.hint) == ("bad", "/x", 3, "do")

    def test_a_traceback_says_what_to_do(self) -> None:
        """Who uses the SDK in a notebook sees nothing else."""
        error = tape2048.errors.FormatError("bad", path="/x", hint="restore it")
        for shown in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own
            lines = traceback.format_exception(shown)
            assert lines == ["tape2048.errors.FormatError: /x: bad\n", "hint: restore it\n"]
        (_, advice) = traceback.format_exception(tape2048.errors.FormatError("bad"))
        assert advice.startswith("hint: The file is damaged, or from another program. ")
