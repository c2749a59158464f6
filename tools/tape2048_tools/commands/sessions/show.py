"""``tape2048 show``: show one session in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048_tools.terminal.click_extras import EXISTING, json_option, new_command
from tape2048_tools.terminal.display import board, number, share, size
from tape2048_tools.terminal.output import cell, columns, print_result, table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048.session.session import Session

_BAR_WIDTH = 40


@new_command(
    "tape2048 show selfplay/20260101T000000Z_model=ntuple",
    'tape2048 show "$(ls -d selfplay/*/ | tail -1)"',
    "tape2048 show SESSION --json | jq .score.p50",
)
@click.argument("session", type=EXISTING)
@json_option()
def command(*, session: Path, as_json: bool) -> None:
    """Show a session: its facts and settings, scores, tiles, labels, its best game."""
    from tape2048.session.session import Session

    document = _document(Session.open(session))
    print_result(document, lambda: _parts(document), as_json=as_json)


def _document(session: Session) -> dict[str, Any]:
    from tape2048_tools.sessions.roots import directory_bytes
    from tape2048_tools.sessions.summary import label_prevalence, quantiles, tiles

    runs = session.runs
    return {
        "name": session.name,
        "path": str(session.path),
        "rows": len(session),
        "games": len(runs),
        "bytes": directory_bytes(session.path),
        "meta": session.meta,
        "score": quantiles(runs["max_score"]),
        "steps": quantiles(runs["steps"]),
        "tiles": msgspec.to_builtins(tiles(runs)),
        "labels": label_prevalence(runs),
        "best": _best(session),
    }


def _best(session: Session) -> dict[str, Any] | None:
    """Return the game with the highest score, and its last recorded board (the final one has no row)."""
    if not len(session.runs):
        return None
    ordinal = int(session.runs["max_score"].argmax())
    run = session.runs[ordinal]
    rows = session.steps[session.rows_of(ordinal)]
    last = rows[-1] if len(rows) else None
    return {
        "run_id": int(run["id"]),
        "seed": int(run["seed"]),
        "score": int(run["max_score"]),
        "highest_tile": int(run["highest_tile"]),
        "steps": int(run["steps"]),
        "step_idx": None if last is None else int(last["step_idx"]),
        "exps": None if last is None else last["exps"].tolist(),
    }


def _parts(document: dict[str, Any]) -> list[RenderableType]:
    facts = {key: value for key, value in document["meta"].items() if key not in ("config", "rows", "runs")}
    config = document["meta"].get("config")
    shown = {
        "path": document["path"],
        "rows": number(document["rows"]),
        "games": number(document["games"]),
        "size": size(document["bytes"]),
        **{key: _plain(value) for key, value in facts.items()},
    }
    parts: list[RenderableType] = [cell(document["name"], style="bold"), columns(shown)]
    if isinstance(config, dict):
        settings = {key: _setting(key, value) for key, value in config.items()}
        parts += ["", cell("settings", style="bold"), columns(settings)]
    if document["games"]:
        parts += ["", _quantiles(document), "", _tiles(document), "", _labels(document), ""]
        parts += _best_parts(document["best"])
    return parts


def _plain(value: object) -> str:
    """Return a fact as text; as JSON if it is not text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _setting(name: str, value: object) -> str:
    """Return a setting's value as text; an unknown setting as :func:`_plain` does."""
    from tape2048.settings.fields import settings_of
    from tape2048_recorder.config.schema import RecorderConfig

    setting = settings_of(RecorderConfig).get(name)
    return _plain(value) if setting is None or value is not None else setting.show(value)


def _quantiles(document: dict[str, Any]) -> RenderableType:
    shown = table("games", ">mean", ">10%", ">50%", ">90%", ">max")
    for name, key in (("score", "score"), ("moves", "steps")):
        shown.add_row(name, *(number(value) for value in document[key].values()))
    return shown


def _tiles(document: dict[str, Any]) -> RenderableType:
    shown = table(">highest tile", ">games", ">share", ">reached", "")
    most = max(tile["games"] for tile in document["tiles"])
    for tile in document["tiles"]:
        bar = "#" * max(1, round(_BAR_WIDTH * tile["games"] / most))
        shares = share(tile["share"]), share(tile["reach"])
        shown.add_row(str(tile["tile"]), number(tile["games"]), *shares, cell(bar, "yellow"))
    return shown


def _labels(document: dict[str, Any]) -> RenderableType:
    shown = table(">label", ">games", ">of games", ">of rows")
    for label in document["labels"]:
        shares = share(label["game_share"]), share(label["row_share"])
        shown.add_row(str(label["threshold"]), number(label["games"]), *shares)
    return shown


def _best_parts(best: dict[str, Any]) -> list[RenderableType]:
    facts = f"best game: run {best['run_id']}, score {number(best['score'])}, {number(best['steps'])} moves"
    if best["exps"] is None:
        return [cell(f"{facts}; none of its boards was recorded")]
    return [cell(f"{facts}; its board before move {best['step_idx']}", "bold"), board(best["exps"])]
