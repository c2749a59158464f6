"""``tape2048 critic ask``: a critic's probabilities for boards."""

from __future__ import annotations

from pathlib import Path

import click

from tape2048_tools.terminal.click_extras import CRITIC, CRITIC_TOWER, DEVICE, json_option, new_command


@new_command(
    "tape2048 critic ask 0x0123456789abcdef",
    "tape2048 critic ask '0 2 0 0 / 0 4 2 0 / 8 16 4 2 / 1024 512 256 128'",
    "tape2048 critic ask --critic critic/best.critic 81985529216486895 --json",
)
@click.argument("boards", nargs=-1, required=True, metavar="BOARD...")
@CRITIC
@CRITIC_TOWER
@DEVICE
@json_option()
def command(*, boards: tuple[str, ...], critic: Path, tower: str | None, device: str, as_json: bool) -> None:
    """Print the probability that a game from BOARD reaches each tile of a critic.

    BOARD is 16 hexadecimal digits, tiles or exponents, from the top left, or a packed board in decimal.
    """
    import numpy as np

    from tape2048.base.drawing import exps_of
    from tape2048_tools.options.critic_options import open_critic
    from tape2048_tools.terminal.output import columns, print_result

    packed = [_packed(text) for text in boards]
    loaded = open_critic(critic, device, tower)
    found = loaded(np.array(packed, np.uint64))
    document = {
        "critic_sha256": loaded.sha256,
        "players": [player.player_name for player in loaded.info.players],
        "boards": [
            {
                "board": board,
                "exps": exps_of(board),
                "probabilities": dict(zip(map(str, loaded.thresholds), row, strict=True)),
            }
            for board, row in zip(packed, found.tolist(), strict=True)
        ],
    }
    rows = [
        {
            "board": f"0x{board:016x}",
            **{f"P({tile})": f"{p:.4f}" for tile, p in zip(loaded.thresholds, row, strict=True)},
        }
        for board, row in zip(packed, found.tolist(), strict=True)
    ]
    print_result(document, lambda: [columns(row) for row in rows], as_json=as_json)


def _packed(text: str) -> int:
    from tape2048.game.board_text import parse_board

    try:
        return parse_board(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="BOARD") from error
