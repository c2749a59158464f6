"""Objects at a prompt: tables and bars in HTML for notebooks, and signatures with every keyword."""

from __future__ import annotations

import html
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")

_BAR = (
    '<div style="display:inline-block;height:.7em;width:{width:.1f}em;background:#8a8376"></div> {share:.2%}'
)


def facts_table(title: str, facts: Mapping[str, object], bars: Mapping[str, float] | None = None) -> str:
    """Return a table of facts, and below them shares as bars, in HTML.

    Args:
        title: the caption.
        facts: what stands beside each name; integers get separators.
        bars: shares from 0 to 1 by name.
    """
    rows = [
        (name, html.escape(f"{fact:,}" if isinstance(fact, int) else str(fact)))
        for name, fact in facts.items()
    ]
    rows += [(name, _BAR.format(width=12 * share, share=share)) for name, share in (bars or {}).items()]
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{cell}</td></tr>" for name, cell in rows)
    return f'<table style="text-align:left"><caption>{html.escape(title)}</caption>{cells}</table>'


def spell_out(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Make a decorator: ``help()`` and completion show these keywords in place of ``**options``.

    Args:
        options: the ``TypedDict`` of the keywords, which type checkers know already.
        defaults: the default of each; None for those that are not named.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        kept = [
            each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keywords = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=kind.__forward_arg__,
            )
            for name, kind in options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*kept, *keywords])  # type: ignore[attr-defined]
        return function

    return decorate
