"""A former name of a column, field or filter is an error that names the present one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tape2048 import Corpus, errors
from tape2048.session.former_names import RENAMED

from ..corpora import build

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(build(tmp_path_factory.mktemp("names")).root)


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda corpus: corpus.runs["max_score"], "max_score is now score"),
        (lambda corpus: corpus.runs[["seed", "id"]], "id is now run_id"),
        (lambda corpus: corpus.sessions[0].runs["id"], "id is now run_id"),
        (lambda corpus: corpus.fetch([0], ("highest",)), "highest is now highest_tile"),
        (lambda corpus: corpus.batches(8, fields=("board_highest",)), "is now board_highest_tile"),
        (lambda corpus: corpus.fetch([0], ("highest_after_30",)), "is now highest_tile_after_30"),
        (lambda corpus: next(iter(corpus.batches(8))).step_idx, "step_idx is now step"),
        (lambda corpus: corpus.where("max_score > 3"), "max_score is now score. As a filter"),
        (lambda corpus: corpus.where('"id" = 3'), "id is now run_id"),
        (lambda corpus: corpus.rows_where("board_highest >= 14"), "board_highest_tile. It is the tile"),
        (lambda corpus: corpus.rows_where("max_score > 3"), "max_score is now score"),
        (lambda corpus: corpus.where(min_tile=2048), "min_tile is now min_highest_tile"),
        (lambda corpus: Corpus.open(corpus.sessions[0].path, max_tile=3), "is now max_highest_tile"),
        (lambda corpus: corpus.where("step < 50"), "step is of a row: select rows with corpus.rows_where("),
    ],
)  # fmt: skip
def test_a_former_name(corpus: Corpus, use: Callable[[Corpus], Any], hint: str) -> None:
    with pytest.raises((ValueError, KeyError, AttributeError, errors.ConfigError)) as caught:
        use(corpus)
    assert hint in f"{caught.value} {getattr(caught.value, 'hint', None)}"


@pytest.mark.parametrize(
    "condition",
    ["run IN (2, 5)", "run_id % 3 = 1", "steps > 20 AND score > 99", "highest_tile >= 8192", "rows < 50",
     "started > '2025-01-03'", "model = 'weak' OR player = ''"],
)  # fmt: skip
def test_games_and_rows_know_the_same_columns(corpus: Corpus, condition: str) -> None:
    assert 0 < len(corpus.where(condition)) == len(corpus.rows_where(condition)) < len(corpus)


def test_no_page_or_help_has_a_former_name() -> None:
    """Many conditions of pages and helps are not executed, since they need a long recording."""
    root, found = Path(__file__).parents[3], set()
    for pattern in ("README.md", "docs/[!_]*/**/*.md", "examples/*.py", "recorder/**/*.py", "tools/**/*.py"):
        for path in root.glob(pattern):
            found |= {*re.findall(r"""where(?: |=|\()["']([^"'\n]*)|such as (\w+ >=)""", path.read_text())}
    assert len(found) > 15
    words = {word for both in found for text in both for word in re.findall(r"\w+", text)}
    assert not words & RENAMED.keys()
