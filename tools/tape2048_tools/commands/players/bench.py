"""``tape2048 bench-player``: measure how fast a batched player plays in lanes, and where the time goes."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import Command, json_option

if TYPE_CHECKING:
    from collections.abc import Callable

#: A worker runs one thread, so the model is measured with one.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@click.command(
    cls=Command,
    examples=[
        "tape2048 bench-player null",
        "tape2048 bench-player python:my.players:make:model=policy.pt --lanes 512,4096,16384",
        "tape2048 bench-player python:players.py:make --method softmax --json",
    ],
)
@click.argument("player")
@click.option(
    "--lanes", default="64,1024,4096", show_default=True, help="Numbers of lanes, separated by commas."
)
@click.option("--seconds", default=2.0, show_default=True, help="Seconds of measurement for each.")
@click.option(
    "--method",
    default="argmax",
    show_default=True,
    help="How scores become moves: argmax, softmax, top_k, top_p.",
)
@json_option()
def command(*, player: str, lanes: str, seconds: float, method: str, as_json: bool) -> None:
    """Measure how fast a batched player plays, and where the time goes.

    PLAYER is python:package.module:factory or python:file.py:factory, with parameters as in `record`; `null`
    plays random moves in compiled code, which shows the cost of the lanes without a model. Games are recorded
    into memory and dropped. It runs one process with one thread, as each worker of a recorder does.
    """
    os.environ.update(_THREADS)  # before the libraries that read them load
    from tape2048.settings.fields import settings_of
    from tape2048_recorder.config.loading import split_player
    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.players.sampling import read_sampling

    sampling = read_sampling({"method": method})
    words = lanes.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise click.UsageError(
            f"--lanes: found {lanes!r}, expected whole numbers separated by commas, as 64,1024"
        )
    sizes = [int(word) for word in words]
    try:
        name, args = split_player(player)
    except ValueError as error:
        raise click.UsageError(f"{error}: expected NAME:key=value,key=value") from error
    lanes_max = settings_of(RecorderConfig)["lanes"].le or math.inf
    if min(sizes) < 1 or not 0 < seconds < math.inf:
        raise click.UsageError("expected at least one lane, and --seconds above 0")
    if max(sizes) > lanes_max:
        raise click.UsageError(
            f"--lanes: found {max(sizes)}, expected at most {lanes_max}, the limit of a recorder"
        )
    from tape2048_recorder.lanes.measuring import measure
    from tape2048_tools.terminal.output import print_human, print_json, table
    from tape2048_tools.views.opening import progress_bar

    with progress_bar(f"measuring {name}") as bar:
        found = [
            measure(
                name,
                args or {},
                lanes=size,
                sampling=sampling,
                seconds=seconds,
                progress=_part(bar, number, len(sizes)),
            )
            for number, size in enumerate(sizes)
        ]
    if as_json:
        print_json({"player": player, "method": method, "measurements": found})
        return
    made = table(
        ">lanes", ">moves/s", ">moves/cpu s", ">calls/s", ">model", ">rules", ">record", ">rest", title=player
    )
    for one in found:
        shares = (f"{share:.0%}" for share in (one.model, one.rules, one.record, one.rest))
        made.add_row(
            f"{one.lanes:,}",
            f"{one.moves_per_s:,.0f}",
            f"{one.moves_per_cpu_s:,.0f}",
            f"{one.calls_per_s:,.0f}",
            *shares,
        )
    print_human(made)


def _part(bar: Callable[[int, int], None] | None, number: int, count: int) -> Callable[[float], None] | None:
    """Return the progress callback of one measurement of several, which takes its share done."""
    if bar is None:
        return None
    return lambda share: bar(int(100 * (number + share)), 100 * count)
