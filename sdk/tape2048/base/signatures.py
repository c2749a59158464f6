"""Signatures and docstrings that list the options of a function or class in place of ``**options``."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_F = TypeVar("_F", bound="Callable[..., Any]")
_ENTRY = re.compile(r"^( *)\*\*\w+: .*(?:\n\1 .*)*", re.MULTILINE)


def lists_options(options: Any, defaults: Mapping[str, Any] | None = None) -> Callable[[_F], _F]:
    """Make a decorator that lists the keys of a ``TypedDict`` as keyword-only parameters.

    Type checkers read ``**options: Unpack[...]``. Notebooks and :func:`inspect.signature` see the keys, and
    the entries of its docstring replace the entry ``**options`` of the decorated docstring.

    Args:
        options: the ``TypedDict``.
        defaults: the default by key; otherwise None.
    """
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(defaults or {}).get(name),
            annotation=getattr(kind, "__forward_arg__", kind),
        )
        for name, kind in options.__annotations__.items()
    ]
    entries = textwrap.dedent(inspect.getdoc(options) or "").partition("Args:\n")[2]

    def decorate(target: _F) -> _F:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        signature = inspect.signature(function)
        given = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        own = [each for each in shown if each.name not in signature.parameters]
        function.__signature__ = signature.replace(parameters=[*given, *own])
        text = textwrap.dedent(entries).rstrip()
        target.__doc__ = _ENTRY.sub(lambda found: textwrap.indent(text, found[1]), target.__doc__ or "")
        return target

    return decorate
