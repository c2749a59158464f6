"""The facts of a session without what concerns the recording machine alone: sessions are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tape2048.players import file_names, public_player

#: Facts and settings that concern the machine alone.
_LOCAL = frozenset({"host", "out_dir", "model_dir", "to", "metrics_listen", "metrics_textfile"})


def public_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a session's facts, or a recorder's settings, without hosts, addresses and directories.

    A player's files keep their names. The facts of merged sessions are treated the same.
    """
    found = {key: value for key, value in facts.items() if key not in _LOCAL}
    if isinstance(name := found.get("player"), str) and isinstance(args := found.get("player_args"), dict):
        found["player"], found["player_args"] = public_player(name, args)
    if isinstance(start := found.get("start_from"), str):
        found["start_from"] = file_names(start)
    if isinstance(config := found.get("config"), dict):
        found["config"] = public_facts(config)
    if isinstance(parts := found.get("merged_from"), list):
        found["merged_from"] = [public_facts(part) if isinstance(part, dict) else part for part in parts]
    return found
