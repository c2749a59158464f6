"""Planted defects: the product's code with one line changed, to show that a test would notice.

A Python function gets the code of its changed source; a compiled kernel is compiled anew from it, and stands
in the module until the block is left.
"""

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """``where`` is ``module:function`` or ``module:Class.function``; ``old`` stands in its source once."""

    where: str
    old: str
    new: str


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The defect, for as long as this lasts."""
    module_name, _, qualified = mutant.where.partition(":")
    module: Any = importlib.import_module(module_name)
    owner, name = module, qualified
    if "." in qualified:
        class_name, _, name = qualified.partition(".")
        owner = getattr(module, class_name)
    found = vars(owner)[name]
    function = getattr(found, "py_func", getattr(found, "__func__", getattr(found, "fget", found)))
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(keepends=True)
    while not lines[0].startswith("def "):  # decorators: @classmethod, @kernel
        del lines[0]
    source = "".join(lines)
    assert source.count(mutant.old) == 1, f"{mutant.where} does not hold {mutant.old!r} once"
    text = f"from __future__ import annotations\n{source.replace(mutant.old, mutant.new)}"
    made: dict[str, Any] = dict(vars(module))
    exec(compile(text, "mutant", "exec"), made)  # noqa: S102
    if hasattr(found, "py_func"):
        import numba

        setattr(owner, name, numba.njit(made[name]))
        try:
            yield
        finally:
            setattr(owner, name, found)
        return
    # The function stays the object that other modules have imported, with its own globals and defaults.
    before = function.__code__
    function.__code__ = made[name].__code__
    try:
        yield
    finally:
        function.__code__ = before
