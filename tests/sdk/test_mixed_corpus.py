"""Corpora of sessions with the action and without it, against the rows as they were written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, errors

from .corpora import OURS, THEIRS, Built, build

NAMES = (*OURS, THEIRS)
FIELDS = ("tokens", "labels", "row", "run", "step", "legal", "move")


class Both:
    """Each session once without the action, and once with it."""

    def __init__(self, root: Path) -> None:
        self.plain = build(root / "plain")
        self.acting = build(root / "acting", action=True)
        self.owner = np.array(self.plain.session)[self.plain.run]

    def of(self, acting: bool) -> Built:
        return self.acting if acting else self.plain

    def paths(self, kinds: dict[str, bool]) -> list[Path]:
        return [self.of(acting).root / name for name, acting in kinds.items()]

    def rows(self, kinds: dict[str, bool]) -> np.ndarray[Any, Any]:
        """The rows of the sessions, one after the other; with the action where all have it."""
        numbers = self.numbers(kinds)
        return self.of(all(kinds.values())).rows[numbers]

    def numbers(self, kinds: dict[str, bool]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.flatnonzero(self.owner == NAMES.index(name)) for name in kinds])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("mixed"))


@pytest.mark.parametrize("load", ["mmap", "packed", "ram"])
def test_sessions_without_the_action_are_named(both: Both, load: Any) -> None:
    kinds = {OURS[0]: True, OURS[1]: False, OURS[2]: True, THEIRS: False}
    corpus = Corpus.open(both.paths(kinds), load=load)
    with pytest.raises(errors.CorpusError) as caught:
        corpus.batches(8, fields=("tokens", "action"))
    assert caught.value.message == f"no action in the rows of 2 sessions: {OURS[1]}, {THEIRS}"
    assert caught.value.path == str(both.plain.root / OURS[1])
    assert '"move"' in str(caught.value.hint)
    acting = corpus.where(f"session IN ('{OURS[0]}', '{OURS[2]}')")
    rows = acting.fetch(slice(None), ("action",))["action"]
    np.testing.assert_array_equal(rows, both.rows({OURS[0]: True, OURS[2]: True})["action"])
    assert acting.identity == Corpus.open(both.paths({OURS[0]: True, OURS[2]: True})).identity


def test_only_rows_that_fit_are_read(both: Both) -> None:
    kinds = {OURS[0]: True, OURS[1]: False}
    plain, acting = (len(Corpus.open(both.of(with_it).root / name)) for name, with_it in
                     ((OURS[1], False), (OURS[0], True)))  # fmt: skip
    size = 28 * plain + 29 * acting
    assert Corpus.open(both.paths(kinds), ram_budget=size).load == "ram"
    assert Corpus.open(both.paths(kinds), ram_budget=size - 1).load == "packed"
    seen: list[tuple[int, int]] = []
    Corpus.open(both.paths(kinds), load="ram", progress=lambda *now: seen.append(now))
    assert seen[-1] == (size, size)
