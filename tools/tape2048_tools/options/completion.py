"""Shell completion of players and of values of settings; nothing here loads the compiler."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable

    import click

    from tape2048.settings.fields import Setting

#: A pattern that is a choice of plain words.
_CHOICES = re.compile(r"\^\(([a-z0-9]+(?:\|[a-z0-9]+)+)\)\$")

#: Settings whose values are files or directories.
_PATHS = frozenset({"out_dir", "model_dir", "metrics_textfile"})


def choices_of(setting: Setting) -> list[str]:
    """Return the values of a setting that takes one of a few words; else nothing."""
    found = _CHOICES.fullmatch(setting.pattern or "")
    return found[1].split("|") if found else []


def complete_setting(setting: Setting) -> Callable[..., list[CompletionItem]]:
    """Return the completion of a setting's flag: its words, players, or files."""
    if setting.name == "player":
        return complete_player

    def complete(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if setting.name in _PATHS:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in choices_of(setting) if word.startswith(incomplete)]

    return complete


def complete_player(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a built-in player."""
    from tape2048_recorder.players.registry import REGISTRY

    return [
        CompletionItem(kind.name, help=kind.summary)
        for kind in REGISTRY.values()
        if kind.name.startswith(incomplete)
    ]
