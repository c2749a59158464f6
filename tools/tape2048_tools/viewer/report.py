"""Reports: the code and the documents of the pages, written into one HTML file, or for a web server.

The file makes no requests, and its policy forbids them. Games are packed as for the viewer, rounded, deflated
and encoded in base64. The browser unpacks only the shown game. For a web server, each game is a file, which
the page requests.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048._version import __version__
from tape2048.base.text import json_bytes
from tape2048.errors import TapeError
from tape2048.files.durable import write_file
from tape2048_tools.viewer.assets import bundle, dense, static_files
from tape2048_tools.viewer.collection import page_of_games
from tape2048_tools.viewer.game_data import UNCALIBRATED, card, pack
from tape2048_tools.viewer.overview import overview, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tape2048_tools.viewer.collection import Entry
    from tape2048_tools.viewer.data import Data

    Progress = Callable[[int, int], object]

#: Games of a report.
GAMES_MAX = 50

#: Most bytes of all games in base64. A game that does not fit is left out.
_GAMES_BYTES = 4_400_000

#: Level of compression: 9 takes five times as long, for 3% less.
_DEFLATE = 7

#: The lines of ``index.html`` that refer to files. A report has the files' content, and a policy.
_FILES_OF_VIEWER = """\
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
<script type="module" src="/static/app.js"></script>
"""

_KINDS = (
    ("best", "score", True), ("worst", "score", False), ("longest", "steps", True),
    ("costliest", "loss", True),
)  # fmt: skip


def one_file(
    title: str, document: Mapping[str, Any], *, entry: str = "report.js", connects: str = "'none'"
) -> bytes:
    """Return an HTML file with the viewer's code; ``connects`` is its policy's ``connect-src``."""
    files = static_files()
    script, style = dense(bundle(files, entry)), files["style.css"].decode()
    policy = (
        f"default-src 'none'; script-src '{_source_hash(script)}'; style-src '{_source_hash(style)}'; "
        f"connect-src {connects}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a script only "<" can end the element.
    data = json_bytes(document).decode().replace("<", "\\u003c")
    head, body = files["index.html"].decode().split(_FILES_OF_VIEWER, 1)
    found = (
        head.replace("<title>tape2048</title>", f"<title>{html.escape(title)}</title>")
        + f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        + body.partition("</body>")[0]
        + f'<script type="application/json" id="data">{data}</script>\n'
        + f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )
    return found.encode("utf-8", "backslashreplace")


def _source_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def game_file(data: Data, entry: Entry, run: int, judge: int = 0, move: int = 0) -> bytes:
    """Return a game as one HTML file. It opens at ``move``, or at the ``#move=`` of its address."""
    game, judged, facts = data.judged(entry, run, judge)
    packed = pack(facts, game, judged, data.judges.opinion(game.states), small=True)
    document = {"game": _encoded(packed), "move": move, "version": __version__}
    title = f"2048 game, score {facts['score']:,}: {facts['player']}"
    return one_file(title, document, entry="game.js")


def _encoded(packed: bytes) -> str:
    return base64.b64encode(zlib.compress(packed, _DEFLATE)).decode()


def make_report(
    data: Data, *, games: int = GAMES_MAX, made: str | None = None, progress: Progress | None = None
) -> bytes:
    packs: dict[str, str] = {}

    def keep(key: str, packed: bytes) -> bool:
        encoded = _encoded(packed)
        if sum(map(len, packs.values())) + len(encoded) > _GAMES_BYTES:
            return False
        packs[key] = encoded
        return True

    document = _document(data, games, made, progress, keep)
    return one_file(f"Report of {document['title']}", document | {"packs": packs})


def write_site(
    data: Data, directory: Path, *, games: int = GAMES_MAX, progress: Progress | None = None
) -> None:
    (directory / "games").mkdir()

    def keep(key: str, packed: bytes) -> bool:
        write_file(directory / "games" / key.replace("/", "-"), zlib.compress(packed, _DEFLATE))
        return True

    document = _document(data, games, None, progress, keep)
    page = one_file(f"Report of {document['title']}", document | {"packs": {}}, connects="'self'")
    write_file(directory / "index.html", page)


def _document(
    data: Data, games: int, made: str | None, progress: Progress | None, keep: Callable[[str, bytes], bool]
) -> dict[str, Any]:
    """Return the data of a report; ``keep`` gets each packed game, and returns whether it was kept."""
    table = data.collection.whole()
    chosen = list(_chosen(data, games, progress))
    # The first game of each kind, then the second: if not all fit, every kind still has games.
    ranks = [sum(one[0] == why for one in chosen[:at]) for at, (why, *_) in enumerate(chosen)]
    rows = []
    judged = dict[str, None]()
    for _, (why, number, packed, facts) in sorted(zip(ranks, chosen, strict=True), key=lambda one: one[0]):
        entry, row = table.at(number)
        key = f"{entry.id}/{row['run_id']}"
        if not keep(key, packed):
            continue
        marks = {"weak": bool(facts["weak"]), "graded": not facts["uncalibrated"]}
        shown = card(entry, int(row["run_id"])) | facts.pop("sums") | marks
        warnings = facts["weak"], facts["uncalibrated"] and UNCALIBRATED
        judged |= dict.fromkeys(filter(None, [f"Judged by {facts['by']}.", *warnings]))
        rows.append({"key": key, "why": why, **table.document(number), "card": shown})
    roots = ", ".join(root.name or str(root) for root in data.collection.roots)
    return {
        "title": roots,
        "made": made or datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "overview": overview(table, [None]),
        "samples": [sample(table, table.once(None).games, data.judges)] if len(table) else [],
        "games": rows,
        "judged": list(judged),
    }


def _chosen(
    data: Data, most: int, progress: Progress | None
) -> Iterator[tuple[str, int, bytes, dict[str, Any]]]:
    """Choose and judge games of each kind: kind, number, packed game, facts with ``sums``."""
    table = data.collection.games()
    once = table.once(None).games
    kinds = [one for one in _KINDS if one[1] != "loss" or not np.isnan(table["loss"]).all()]
    wanted: dict[int, str] = {}
    for left, (why, column, descending) in zip(range(len(kinds), 0, -1), kinds, strict=True):
        share = -(-(most - len(wanted)) // left)
        listed, values = page_of_games(table, once, column, 0, descending=descending).tolist(), table[column]
        new = [one for one in listed if one not in wanted and not np.isnan(values[one])]
        wanted |= dict.fromkeys(new[:share], why)
    for done, (number, why) in enumerate(wanted.items()):
        if progress is not None:
            progress(done, len(wanted))
        with contextlib.suppress(TapeError, OSError):  # damaged or removed: the overview still counts it
            entry, row = table.at(number)
            game, found, facts = data.judged(entry, int(row["run_id"]), 0)
            packed = pack(facts, game, found, data.judges.opinion(game.states), small=True)
            yield why, number, packed, facts | {"sums": {} if found is None else found.sums}
