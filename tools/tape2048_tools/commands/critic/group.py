"""``tape2048 critic``: train, evaluate and apply critics."""

from __future__ import annotations

import click

from tape2048_tools.terminal.click_extras import LazyGroup

COMMANDS = {
    "train": ("tape2048_tools.commands.critic.train_critic", "Train a critic on sessions."),
    "eval": ("tape2048_tools.commands.critic.eval", "Evaluate a critic by game stage and tile."),
    "ask": ("tape2048_tools.commands.critic.ask", "Print a critic's probabilities for boards."),
    "score": ("tape2048_tools.commands.critic.score", "Write a critic's probabilities for every row."),
}


@click.group(
    "critic",
    cls=LazyGroup,
    lazy=COMMANDS,
    examples=[
        "tape2048 critic train selfplay --out critic",
        "tape2048 critic eval critic/best selfplay",
        "tape2048 critic score critic/best selfplay",
    ],
)
def command() -> None:
    """Train, evaluate and apply critics of positions."""
