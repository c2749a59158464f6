"""Cards of sessions: ``README.md`` for the Hugging Face Hub, and ``croissant.json``, without reading rows.

Both files carry a checksum of their text. It shows whether a file was edited.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import html
import io
import json
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape2048.base.intervals import wilson
from tape2048.base.text import json_bytes, pretty_json, printable
from tape2048.corpus import Corpus
from tape2048.errors import EmptyCorpusError
from tape2048.files.reading import crc32c
from tape2048.loader.duplicates import warn_of_doubled
from tape2048.runs.exports import make_table, write_arrow
from tape2048.session.tiles_shown import tiles_of_players, tiles_shown
from tape2048_tools.sessions.summary import column_facts, sum_up
from tape2048_tools.terminal.display import number, share_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape2048.session.session import Session

#: Names of the files.
CARDS = ("README.md", "croissant.json")

#: Name of the table of games that the Hub shows, and the most games in it.
PREVIEW, _PREVIEW_GAMES_MAX = "games.parquet", 100_000

_TEMPLATES = Path(__file__).with_name("card_files")
_MARK, _BLANK = re.compile(rb"tape2048-card:([0-9a-f]{8})"), b"tape2048-card:00000000"
_HUB_DATASET = re.compile(r"https://(?:huggingface\.co|hf\.co)/datasets/([\w.-]+/[\w.-]+)/?")
_RULES = {
    "1": "Two tiles of 32768 do not merge (rules 1).",
    "2": "Two tiles of 32768 merge, which scores 65536, and the game ends with that move (rules 2).",
}
_UNKNOWN = "Some sessions do not record their rules."
#: The Hub's size classes, by the number of digits of the rows beyond three.
_SIZES = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
_SIZES += ["10B<n<100B", "100B<n<1T", "n>1T"]


def is_own(content: bytes) -> bool:
    """Check whether :func:`make_cards` wrote this content, and it was not edited since."""
    match = _MARK.search(content)
    return match is not None and crc32c(_MARK.sub(_BLANK, content)) == int(match[1], 16)


def card_fact(readme: str, key: str) -> str | None:
    found = re.search(rf"^{key}: *(.+?) *$", readme, re.MULTILINE)
    with contextlib.suppress(ValueError):  # not quoted
        return found and str(json.loads(found[1]))
    return found and found[1]


def make_preview(several: Sequence[Session]) -> bytes:
    table = make_table(Corpus.open([one.path for one in several]), "runs")
    table = table._replace(records=min(table.records, _PREVIEW_GAMES_MAX))
    write_arrow(table, file := io.BytesIO(), "parquet", "zstd", lambda *_: None)
    return file.getvalue()


def hub_name(url: str) -> str:
    """Return the name of a data set on the Hub, from its URL; ``USER/NAME`` for another URL."""
    match = _HUB_DATASET.fullmatch(url)
    return match[1] if match else "USER/NAME"


def make_cards(several: Sequence[Session], title: str, license_id: str, url: str) -> dict[str, bytes]:
    facts, title = sum_up(several), printable(title)
    if not facts["games"]:
        raise EmptyCorpusError("the sessions have no games", path=several[0].path.parent)
    warn_of_doubled(facts["twice"])
    facts["players"] = [one for one in facts["players"] if one["games"]]
    reach: list[dict[str, Any]] = []
    for one in reversed(facts["tiles"]):
        games = one["games"] + (reach[0]["games"] if reach else 0)
        reach.insert(0, {"tile": one["tile"], "games": games, **wilson(games, facts["games"])._asdict()})
    croissant = json.loads((_TEMPLATES / "croissant.json").read_bytes())
    croissant |= {"name": title, "license": license_id, "identifier": _BLANK.decode()}
    croissant |= {"datePublished": str(dt.datetime.now(dt.UTC).date())} | ({"url": url} if url else {})
    of_players, of_reach, *_ = croissant["recordSet"]
    for of, records in ((of_players, facts["players"]), (of_reach, reach)):
        of["data"] = [{each["@id"]: one[each["name"]] for each in of["field"]} for one in records]
    texts = _texts(several, facts, reach)
    texts |= {"title": _escaped(title), "quoted_title": json_bytes(title).decode(), "mark": _BLANK.decode()}
    texts |= {"license": json_bytes(license_id).decode(), "repo": hub_name(url)}
    readme = string.Template((_TEMPLATES / "README.md").read_text("utf-8")).substitute(texts)
    made = dict(zip(CARDS, (readme.encode(), pretty_json(croissant)), strict=True))
    return {name: text.replace(_BLANK, b"tape2048-card:%08x" % crc32c(text)) for name, text in made.items()}


def _texts(several: Sequence[Session], facts: dict[str, Any], reach: Sequence[Any]) -> dict[str, str]:
    engines, rates = (
        {str(one.meta.get(key, "unknown")) for one in several} for key in ("engine", "sample_rate")
    )
    # Recorders before rules 2 did not record the rules.
    rules = {str(one.meta.get("rules", "tape2048" in str(one.meta.get("engine")) and 1)) for one in several}
    columns = collections.Counter(
        (one["name"], one["dtype"] + str(["N", *one["shape"][1:]]).replace("'", ""), str(one["maker"]))
        for session in several
        for one in column_facts(session.columns)
    )
    # A label that nearly all games have, or nearly none, teaches little.
    tiles = tiles_shown([{one["tile"]: one["share"] for one in reach}])[-3:]
    heads = tiles_of_players(facts["players"])
    return {
        key: number(one) if isinstance(one, int) else str(one or "unknown") for key, one in facts.items()
    } | {
        "size_category": _SIZES[min(max(len(str(facts["rows"])) - 3, 0), len(_SIZES) - 1)],
        "twice": " A game that several sessions hold counts once." if facts["twice"] else "",
        "engines": _escaped(", ".join(sorted(engines))),
        "rates": _escaped(", ".join(sorted(rates))),
        "rules": " ".join(sorted({_RULES.get(one, _UNKNOWN) for one in rules})),
        "tiles": ", ".join(map(str, tiles)),
        "thresholds": str(tuple(tiles)),
        "heads": " | ".join(heads),
        "dashes": "--:|" * len(heads),
        "players": _lines(
            [*map(one.get, ("player_name", "recorded_as", "games", "mean_score", "best_score"))]
            + [share_between(*one["reach"][tile].values()) for tile in heads]
            for one in facts["players"]
        ),
        "reach": _lines(
            [str(tile), games, share_between(*rate)] for tile, games, *rate in map(dict.values, reach)
        ),
        "columns": _lines([*key, count] for key, count in sorted(columns.items())) or "| none | | | |",
    }


def _lines(records: Iterable[Sequence[Any]]) -> str:
    texts = ([one if isinstance(one, str) else number(one) for one in record] for record in records)
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in texts)


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: without HTML, links and cells of tables."""
    return html.escape(printable(text), quote=False).replace("|", "\\|").replace("](", "]\\(")
