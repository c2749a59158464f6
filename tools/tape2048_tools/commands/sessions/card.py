"""``tape2048 card`` and ``tape2048 publish``: a dataset card of sessions, and their upload to the Hub."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from tape2048.base.text import counted
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import ROOT, json_option, new_command, options, quiet_option
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, complain, print_result

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.session.session import Session
    from tape2048.stores.objects import HubStore

_TEXTS = options(
    click.option("--title", help="Name of the data set.  [default: from README.md, or the directory's name]"),
    click.option(
        "--license",
        "license_id",
        help="Id of the license, such as cc-by-4.0.  [default: from README.md, or unknown]",
    ),
)


@new_command(
    "tape2048 card selfplay --license cc-by-4.0",
    'tape2048 card selfplay --title "2048 by ntuple" --url https://huggingface.co/datasets/USER/NAME --force',
)
@click.argument("root", type=ROOT)
@_TEXTS
@click.option(
    "--url", default="", help="Page of the data set. If it is on the Hub, the loading code uses it."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace the two files even if they were edited or another program wrote them.",
)
@json_option()
@quiet_option()
def command(*, root: Path, url: str, force: bool, as_json: bool, quiet: bool, **texts: str | None) -> None:
    """Write README.md and croissant.json into ROOT, for publication on the Hugging Face Hub.

    README.md is a dataset card: players, rules, reach of the tiles with 95% intervals, splits, columns and
    the code that loads the sessions. croissant.json has the same in Croissant 1.1 (JSON-LD).

    Every session is validated first. If one is damaged, nothing is written.
    """
    from tape2048.errors import NameTakenError
    from tape2048.files.durable import check_new_file, publishing_file
    from tape2048_tools.dataset_card import CARDS, hub_name

    _refuse_session(root)
    for path in map(root.joinpath, CARDS):
        check_new_file(path, replace=True)
        if _edited(path) and not force:
            message = "found a file that was edited, or that another program wrote. Nothing was written"
            raise NameTakenError(message, path=path, hint="Pass --force to replace it.")
    several, cards = _make(root, url, quiet=quiet, **texts)
    for name, content in cards.items():
        with publishing_file(root / name, replace=True) as file:
            file.write(content)
    upload = f"tape2048 publish {shlex.quote(str(root))} --to hf://datasets/{hub_name(url)}"
    document = {"root": str(root), "sessions": len(several), "files": list(cards), "upload": upload}
    steps = (f"wrote {' and '.join(cards)} into {root}", "Complete README.md, then publish the directory:")
    print_result(document, lambda: [*map(cell, steps), cell(f"  {upload}")], as_json=as_json)


@new_command(
    "tape2048 publish selfplay --to hf://datasets/USER/NAME --license cc-by-4.0",
    "tape2048 publish selfplay --to hf://datasets/USER/NAME --dry-run",
)
@click.argument("root", type=ROOT)
@click.option("--to", required=True, metavar="URL", help="The data set: hf://datasets/OWNER/NAME[@BRANCH].")
@_TEXTS
@click.option("--private", is_flag=True, help="If there is no such data set, create a private one.")
@click.option("--remove", is_flag=True, help="Remove sessions from the data set that ROOT does not have.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="List the files to upload and to remove and the names that become public, and change nothing.",
)
@json_option()
@quiet_option("Show no progress.")
def publish(
    *,
    root: Path,
    to: str,
    private: bool,
    remove: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **texts: str | None,
) -> None:
    """Upload the sessions of ROOT to the Hugging Face Hub (extra hf), in one commit.

    The commit also has README.md and croissant.json of `tape2048 card`, and games.parquet, a table of the
    games for the Hub's viewer. An edited file in ROOT is uploaded unchanged. ROOT does not change.

    The commit names the files of players and columns, but no directory, host or user of this machine. If a
    session of an early version does, its metadata.db is changed for the commit. A warning names what is left
    of them, such as in an edited README.md.

    Readers see the whole commit or nothing. After an interruption, run the command again: files that the Hub
    already has are not uploaded again. HF_TOKEN or `hf auth login` gives access.

    Every session is validated first. If one is damaged, nothing is uploaded.
    """
    from tape2048.errors import ConfigError, masked
    from tape2048.files.reading import read_path
    from tape2048.stores.objects import open_store
    from tape2048_tools.dataset_card import CARDS, PREVIEW, make_preview
    from tape2048_tools.sessions.publication import names_in, of_this_machine, public_files

    _refuse_session(root)
    if (match := re.fullmatch(r"hf://(datasets/[^/@]+/[^/@]+)(@[^/]+)?/?", to)) is None:
        raise ConfigError(f"--to is {to!r}; expected hf://datasets/OWNER/NAME, or with @BRANCH")
    hub, there = _open_hub(to, dry_run=dry_run)
    local = open_store(str(root))
    several, cards = _make(root, f"https://huggingface.co/{match[1]}", quiet=quiet, **texts)
    if edited := [name for name in CARDS if _edited(root / name)]:
        cards |= {name: bytes(read_path(root / name)) for name in edited}
        complain(f"uploaded unchanged, because you edited it: {', '.join(edited)}")
    cards[PREVIEW] = make_preview(several)
    names = [session.path.name for session in several]
    sizes = {f"{name}/{key}": count for name in names for key, count in local.names(name).items()}
    for session in several:
        cards |= public_files(session)
    for found in of_this_machine(several, cards):
        complain(f"warning: {found}")
    others = sorted(there.difference(names))
    if others and not remove:
        complain(f"in the data set, but not in {root}: {', '.join(others)}. Pass --remove to remove them.")
        others = []
    commit = None
    if not dry_run:
        if quiet:
            from huggingface_hub.utils import disable_progress_bars

            disable_progress_bars()
        assert hub is not None
        files: dict[str, Path | bytes] = {**{key: root / key for key in sizes}, **cards}
        message = f"Publish {counted(len(names), 'session')}"
        commit = hub.commit(files, message, removed=others, private=private)
    sizes |= {name: len(content) for name, content in cards.items()}
    document = {"root": str(root), "to": masked(to), "dry_run": dry_run, "sessions": len(several)}
    document |= {"bytes": sum(sizes.values()), "files": sizes, "removed": others, "commit": commit}
    document["names"] = said = names_in(several)
    lines = [f"{key}: {size(count)}" for key, count in sizes.items()] if dry_run else []
    lines += [f"named in them: {name}" for name in said] if dry_run else []
    lines += [f"{'would remove' if dry_run else 'removed'} {name}" for name in others]
    done, what = "would upload" if dry_run else "published", counted(len(several), "session")
    lines.append(f"{done} {what}, {size(sum(sizes.values()))}: {commit or masked(to)}")
    print_result(document, lambda: map(cell, lines), as_json=as_json)


def _open_hub(to: str, *, dry_run: bool) -> tuple[HubStore | None, set[str]]:
    """Return the data set and the sessions in it; without the Hub, a dry run has a note instead."""
    from tape2048.errors import MissingPackageError, MissingPathError, StoreError
    from tape2048.session.layout import MANIFEST
    from tape2048.stores.objects import HubStore

    hub = None
    try:
        hub = HubStore(to)
        return hub, {key.split("/")[0] for key in hub.names("") if key.count("/") == 1 and MANIFEST in key}
    except MissingPathError:  # a new data set, or no access to it: the commit decides
        pass
    except (StoreError, MissingPackageError) as error:
        if not dry_run:
            raise
        complain(f"sessions that are only in the data set are unknown: {error}")
    return hub, set()


def _refuse_session(root: Path) -> None:
    from tape2048_tools.sessions.summary import refuse_session

    refuse_session(root, "Name its parent directory.")


def _edited(path: Path) -> bool:
    from tape2048.files.reading import read_document
    from tape2048_tools.dataset_card import is_own

    return path.exists() and not is_own(read_document(path))


def _make(
    root: Path, url: str, *, quiet: bool, title: str | None, license_id: str | None
) -> tuple[list[Session], dict[str, bytes]]:
    from tape2048.errors import EmptyCorpusError, error_class
    from tape2048.files.reading import read_document
    from tape2048.maintenance.validation import validate_session
    from tape2048.session.session import Session, sessions
    from tape2048_tools.dataset_card import CARDS, card_fact, make_cards

    if not (paths := sessions(root)):
        raise EmptyCorpusError("no session here", path=root)
    for count, path in enumerate(paths, start=1):
        with progress_bar(f"validating {count}/{len(paths)}", quiet=quiet) as progress:
            found = validate_session(path, progress=progress).findings
        if found:
            hint = f"Run `tape2048 validate {root}`: it lists all defects, and --quarantine moves sessions."
            raise error_class(found[0].error)(f"damaged: {found[0].message}", path=path, hint=hint)
    readme = root / CARDS[0]
    last = read_document(readme).decode(errors="replace") if readme.is_file() else ""
    title = title or card_fact(last, "pretty_name") or root.resolve().name
    several = [*map(Session.open, paths)]
    return several, make_cards(several, title, license_id or card_fact(last, "license") or "unknown", url)
