"""Mutants: the recorder's code with one line changed, to show that a test would notice.

A mutant names a module and a text in it. The whole function that holds the text is compiled again with
the text replaced, inside the real module, so that everything else stays what it is.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mutant(NamedTuple):
    """``where`` is ``module:function`` (or ``module:Class.function``)."""

    where: str
    old: str
    new: str


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant in the place of the function, for as long as this lasts."""
    module_name, _, qualified = mutant.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *classes, name = qualified.split(".")
    for part in classes:
        owner = getattr(owner, part)
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.where} does not hold {mutant.old!r} once"
    code = compile(
        f"from __future__ import annotations\n{source.replace(mutant.old, mutant.new)}", "mutant", "exec"
    )
    made: dict[str, Any] = {}
    exec(code, {}, made)  # noqa: S102
    # The function stays the object that other modules have imported, with its own globals and defaults.
    before = function.__code__
    function.__code__ = made[name].__code__
    try:
        yield
    finally:
        function.__code__ = before
