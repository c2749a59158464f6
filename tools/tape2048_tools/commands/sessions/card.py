"""``tape2048 card``: write a dataset card beside the sessions of a directory."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import ROOT, json_option, new_command, quiet_option
from tape2048_tools.terminal.output import cell, print_result

if TYPE_CHECKING:
    from pathlib import Path


@new_command(
    "tape2048 card selfplay --license cc-by-4.0",
    'tape2048 card selfplay --title "2048 by ntuple" --url https://huggingface.co/datasets/USER/NAME --force',
)
@click.argument("root", type=ROOT)
@click.option("--title", help="Name of the data set.  [default: the directory's name]")
@click.option("--license", "license_id", default="unknown", show_default=True, help="Id of a license.")
@click.option("--url", default="", help="Page of the data set; on the Hub, the loading code names it.")
@click.option("--force", is_flag=True, help="Replace files that were edited, or that another program wrote.")
@json_option()
@quiet_option()
def command(
    *, root: Path, title: str | None, license_id: str, url: str, force: bool, as_json: bool, quiet: bool
) -> None:
    """Write README.md and croissant.json into ROOT, to publish it on the Hugging Face Hub.

    README.md is a dataset card: players, rules, reach of the tiles with 95% intervals, splits, columns and
    the code that loads the sessions. croissant.json has the same in Croissant 1.1 (JSON-LD).

    Every session is validated first. If one is damaged, nothing is written.
    """
    from tape2048.errors import EmptyCorpusError, NameTakenError, error_class
    from tape2048.io.durable import check_new_file, publishing_file
    from tape2048.io.reading import read_path
    from tape2048.maintenance.validation import validate_session
    from tape2048.session.session import Session, sessions
    from tape2048_tools.card import CARDS, hub_name, is_own, make_cards
    from tape2048_tools.sessions.summary import refuse_session

    refuse_session(root, "Name its parent directory.")
    if not (paths := sessions(root)):
        raise EmptyCorpusError("no session here", path=root)
    for path in map(root.joinpath, CARDS):
        check_new_file(path, replace=True)
        if path.exists() and not force and not is_own(bytes(read_path(path))):
            message = "edited, or written by another program. Nothing was written"
            raise NameTakenError(message, path=path, hint="Pass --force to replace it.")
    for count, path in enumerate(paths, start=1):
        with progress_bar(f"validating {count}/{len(paths)}", quiet=quiet) as progress:
            found = validate_session(path, progress=progress).findings
        if found:
            hint = f"Run `tape2048 validate {root}`: it lists all defects, and --quarantine moves sessions."
            raise error_class(found[0].error)(f"damaged: {found[0].message}", path=path, hint=hint)
    cards = make_cards([*map(Session.open, paths)], title or root.resolve().name, license_id, url)
    for name, content in cards.items():
        with publishing_file(root / name, replace=True) as file:
            file.write(content)
    upload = f"hf upload {hub_name(url)} {shlex.quote(str(root))} . --repo-type dataset --exclude '.*'"
    document = {"root": str(root), "sessions": len(paths), "files": list(cards), "upload": upload}
    steps = (f"wrote {' and '.join(cards)} into {root}", "Complete README.md, then publish the directory:")
    print_result(document, lambda: [*map(cell, steps), cell(f"  {upload}")], as_json=as_json)
