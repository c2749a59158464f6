"""Lazy imports: a package's public names (PEP 562), and names in tables."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_IMPORT = re.compile(r"^    from (\S+) import (\([^)]*\)|.*)$", re.MULTILINE)


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    The names are imported in its source as ``from module import name as name`` for type checkers,
    under ``if TYPE_CHECKING:``. The module of a name is imported at the first access to the name.
    """
    module = sys.modules[package]
    spec: Any = module.__spec__
    _, _, source = spec.loader.get_source(package).partition("\nif TYPE_CHECKING:\n")
    imports = _IMPORT.findall(source)
    module_of = {name: home for home, names in imports for name in re.findall(r"(\w+) as \1\b", names)}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *module_of}), sorted(module_of)


def load_named(name: str) -> Any:
    """Import what a table names as ``"module:name"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
