"""``tape2048 view``: look at recordings in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import critic_or_name, json_option, new_command, options

if TYPE_CHECKING:
    from tape2048_tools.viewer.data import Data

#: Bounds of the examination that the page of the critic shows.
_EXAMINED_ROWS, _REPLICATES = 200_000, 200

judge_options = options(
    click.option(
        "--judge",
        "judges",
        multiple=True,
        metavar="PLAYER",
        help="N-tuple player that judges moves, a spawn ahead or ahead=2; several: the first is shown first."
        "  [default: ntuple]",
    ),
    click.option(
        "--critic",
        type=critic_or_name,
        default="default",
        metavar="CRITIC",
        show_default=True,
        help="A critic, or default: the one that ships.",
    ),
)


@new_command(
    "tape2048 view",
    "tape2048 view /data/selfplay --open",
    "tape2048 view selfplay runs/critic --port 0",
    "tape2048 view selfplay --judge ntuple:weights=fast --critic critic/best.critic",
)
@click.argument("roots", nargs=-1, type=click.Path(path_type=Path), metavar="[ROOT]...")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=2048, show_default=True, help="Port; 0: a free one."
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further host name that may be asked for."
)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@judge_options
@json_option("Print the link as a JSON document.")
def command(
    *,
    roots: tuple[Path, ...],
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    opened: bool,
    judges: tuple[str, ...],
    critic: Path,
    as_json: bool,
) -> None:
    """Look at recordings, live recorders, trainings and critics in a browser.

    ROOT is a directory of sessions, one session, or a directory of a training; by default the out_dir of
    `tape2048 record`. Nothing is written, and recorders are asked nothing: the pages read the files. The link
    that is printed holds a token, without which nothing is answered. Ctrl-C ends it at once.
    """
    from tape2048_tools.terminal.output import print_json, print_text
    from tape2048_tools.viewer.app import require_server, serve

    require_server()
    data = make_data(roots, judges, critic)

    def started(link: str) -> None:
        if as_json:
            print_json({"link": link})
        else:
            print_text(f"{link}\nCtrl-C ends it.\n")
        if opened:
            import webbrowser

            webbrowser.open(link)

    serve(data, host, port, allowed=allow_host, started=started)


def make_data(roots: tuple[Path, ...], judges: tuple[str, ...], critic: Path) -> Data:
    """Return what the pages and the report show of some directories."""
    from tape2048.critic.facts import SHIPPED
    from tape2048_tools.critic_report import document, examine, read_curves
    from tape2048_tools.sessions.roots import default_root
    from tape2048_tools.terminal.click_extras import refuse_missing
    from tape2048_tools.viewer.collection import Collection
    from tape2048_tools.viewer.data import Data
    from tape2048_tools.viewer.judges import DEFAULT_JUDGE, Judges

    chosen = list(roots) or [default_root()]
    for root in chosen:
        refuse_missing(root, "name the directory that `tape2048 record` writes to (--out-dir), or record")

    def examined() -> dict[str, Any]:
        found = document(*examine(critic, chosen, rows_max=_EXAMINED_ROWS, bootstrap=_REPLICATES))
        curves = None if str(critic) in SHIPPED else read_curves(critic)
        shown = {name: value for name, value in found.items() if name not in {"critic", "root"}}  # paths
        return shown | {"curves": curves}

    return Data(Collection(chosen), Judges(judges or (DEFAULT_JUDGE,), critic), examined)
