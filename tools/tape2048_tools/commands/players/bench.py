"""``tape2048 bench-player``: measure the speed of a batched player, and where its time goes."""

from __future__ import annotations

import math
import os

import click

from tape2048.base.text import split_words
from tape2048_tools.terminal.click_extras import json_option, new_command
from tape2048_tools.terminal.output import print_result, table

#: A worker runs one thread, so the model is measured with one.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@new_command(
    "tape2048 bench-player null",
    "tape2048 bench-player python:my.players:make:model=policy.pt --lanes 512,4096,16384",
    "tape2048 bench-player python:players.py:make --json",
)
@click.argument("player")
@click.option("--lanes", default="64,1024,4096", show_default=True, help="Numbers of lanes to measure.")
@click.option("--seconds", default=2.0, show_default=True, help="Seconds per number of lanes.")
@json_option()
def command(*, player: str, lanes: str, seconds: float, as_json: bool) -> None:
    """Measure the speed of a batched player, and where its time goes.

    PLAYER is python:package.module:factory or python:file.py:factory, with parameters as in `record`. The
    player `null` makes random moves, and shows the cost of the lanes without a model. The recorded games
    stay in memory and are dropped. Like a worker of a recorder, the benchmark is one process with one thread.
    """
    os.environ.update(_THREADS)  # before the libraries that read them load
    from tape2048.base.settings import settings_of
    from tape2048_recorder.players.sampling import Sampling
    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_tools.options.recorder_options import parse_player

    name, args = parse_player(player)
    try:
        sizes = [int(word) for word in split_words(lanes)]
    except ValueError as error:
        raise click.UsageError(f"--lanes: found {lanes!r}, expected whole numbers such as 64,1024") from error
    lanes_max = settings_of(RecorderConfig)["lanes"].le or math.inf
    if min(sizes, default=0) < 1 or not 0 < seconds < math.inf:
        given = f"found --lanes {lanes} and --seconds {seconds:g}"
        raise click.UsageError(f"{given}, expected at least one lane and more than 0 seconds")
    if max(sizes) > lanes_max:
        raise click.UsageError(f"--lanes: found {max(sizes)}, expected at most {lanes_max}, a worker's limit")
    from tape2048_recorder.lanes.lane_table import measure

    found = [measure(name, args, lanes=size, sampling=Sampling(), seconds=seconds) for size in sizes]
    made = table(
        ">lanes", ">moves/s", ">moves/cpu s", ">calls/s", ">model", ">rules", ">record", ">rest", title=player
    )
    for one in found:
        counts = (one.lanes, one.moves_per_s, one.moves_per_cpu_s, one.calls_per_s)
        shares = (one.model, one.rules, one.record, one.rest)
        made.add_row(*(f"{count:,.0f}" for count in counts), *(f"{share:.0%}" for share in shares))
    print_result({"player": player, "measurements": found}, lambda: [made], as_json=as_json)
