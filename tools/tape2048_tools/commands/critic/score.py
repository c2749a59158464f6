"""``tape2048 critic score``: a critic's probabilities for every row, as a column of each session."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.column_jobs import Maker, column_options, make_columns
from tape2048_tools.terminal.click_extras import CRITIC_TOWER, DEVICE, critic_or_name, new_command

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.session.session import Session


@new_command(
    "tape2048 critic score default selfplay",
    "tape2048 critic score critic/best selfplay --name mine --out scores --json",
    "tape2048 critic score critic/best /nfs/selfplay/sessions --shard 1/8",
)
@click.argument("critic", type=critic_or_name)
@click.option("--name", default="scores", show_default=True, metavar="NAME", help="Name of the column.")
@CRITIC_TOWER
@DEVICE
@column_options("scores")
def command(*, critic: Path, name: str, tower: str | None, device: str, **how: Any) -> None:
    """Write CRITIC's probabilities for every row as a column of each session, f32[rows, tiles].

    The column's JSON file names the tiles (thresholds) and the critic's SHA-256. The column of a session
    appears when it is complete. After a kill, the same command resumes. Convert runs, packs and data sets to
    a session first: tape2048 convert SOURCE --to session --out SESSION.
    """
    from tape2048.critic.shipped import SHIPPED
    from tape2048.session.columns import check_column_name

    try:
        check_column_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--name") from error
    path = critic if str(critic) in SHIPPED else critic.absolute()
    _maker.cache_clear()
    make_columns("critic score", functools.partial(_maker, path, name, tower, device), **how)


@functools.lru_cache(1)
def _maker(path: Path, name: str, tower: str | None, device: str) -> Maker:
    from tape2048.critic.facts import embeddings_of, stranger_remarks
    from tape2048.players import PlayedBy, player_text
    from tape2048.session.columns import ColumnInfo
    from tape2048_tools.options.critic_options import open_critic

    critic: Any = open_critic(path, device, tower)
    facts = {"thresholds": list(critic.thresholds), "critic": path.name, "critic_sha256": critic.sha256}
    column = ColumnInfo(
        name, "f32", len(critic.thresholds), facts={"maker": "tape2048 critic score", **facts}
    )

    def make(session: Session, rows: range) -> dict[str, NDArray[np.float32]]:
        from tape2048.game.rules import exps_to_boards

        if not critic.needs_embeddings:
            return {name: critic(exps_to_boards(session.tokens(slice(rows.start, rows.stop))))}
        embeddings = embeddings_of(session, critic.info.tower.sha256)
        return {name: critic.from_embeddings(embeddings[rows.start : rows.stop])}

    def notes(session: Session) -> list[str]:
        sha256 = session.meta.get("player_sha256")
        player = PlayedBy(player_text(session.meta), sha256 if isinstance(sha256, str) else "", 1)
        return stranger_remarks(critic.info, [player] if len(session) else [])

    return Maker(f"critic {path}", facts, [column], make, notes)
