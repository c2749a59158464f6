"""Objects at a prompt: tables and bars in HTML for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BAR = (
    '<div style="display:inline-block;height:.7em;width:{width:.1f}em;background:#8a8376"></div> {share:.2%}'
)


def facts_table(title: str, facts: Mapping[str, object], bars: Mapping[str, float] | None = None) -> str:
    """Return a table of facts, and below them shares as bars, in HTML."""
    rows = [
        (name, html.escape(f"{fact:,}" if isinstance(fact, int) else str(fact)))
        for name, fact in facts.items()
    ]
    rows += [(name, _BAR.format(width=12 * share, share=share)) for name, share in (bars or {}).items()]
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{cell}</td></tr>" for name, cell in rows)
    return f'<table style="text-align:left"><caption>{html.escape(title)}</caption>{cells}</table>'
