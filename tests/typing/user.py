"""What a user's type checker makes of the SDK: mypy checks this file, and nothing runs it.

An ``ignore`` stands where an error is expected: mypy complains of one that is not needed.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

from tape2048 import Corpus, Session, sessions, validate_session
from tape2048.loader import Batches
from tape2048.torch import CriticDataset, CriticLoader, TorchCritic, as_torch_dataset


def counts(done: int, total: int) -> bool:
    """A callback that returns something is as good as one that does not."""
    return done == total


def rows(path: str) -> None:
    """Rows by number, and several of them."""
    session = Session.open(sessions(path)[-1], load="ram")
    assert_type(session[0], np.void)
    assert_type(session[np.int64(3)], np.void)
    assert_type(session[3:9], NDArray[np.void])
    assert_type(session[np.array([7, 3, 3])], NDArray[np.void])
    assert_type(session[[7, 3, 3]], NDArray[np.void])
    assert_type(session[torch.tensor([7, 3, 3])], NDArray[np.void])
    assert_type(session.tokens([7, 3, 3]), NDArray[np.uint8])
    assert_type(session.labels((512, 1024)), NDArray[np.bool_])
    corpus = Corpus.open([path, *sessions(path)], "steps >= 100", model=["a", "b"], progress=counts)
    assert_type(corpus[-1], np.void)
    assert_type(corpus[3:9], NDArray[np.void])
    assert_type(corpus.fetch(slice(0, 9)), dict[str, NDArray[Any]])
    assert_type(corpus.split(train=0.9, val=0.1), dict[str, Corpus])
    validate_session(path, progress=counts)


def options(corpus: Corpus, given: dict[str, Any]) -> None:
    """Keywords that are passed on are known by name and type."""
    strong = corpus.where(min_score=50_000, since="2026-11-21").capped(512)
    assert_type(strong.batches(100, seed=7, augment="d4"), Batches)
    assert_type(corpus.batches(100, **given), Batches)
    corpus.where(min_sore=50_000)  # type: ignore[call-arg]
    corpus.where(min_score="many")  # type: ignore[arg-type]
    corpus.batches(100, sede=7)  # type: ignore[call-arg]
    strong.batches(100, augment="d8")  # type: ignore[arg-type]
    CriticLoader(strong, 100, label_dtype="float64")  # type: ignore[arg-type]


def tensors(corpus: Corpus, critic: TorchCritic) -> None:
    """With PyTorch."""
    for batch in CriticLoader(corpus, 100, seed=7, threads=2, label_dtype=torch.float32):
        assert_type(batch.tokens, torch.Tensor)
    assert_type(as_torch_dataset(corpus), CriticDataset)
    assert_type(as_torch_dataset(corpus.capped(9), map_style=False, fields=("weight",)), CriticLoader)
    assert_type(as_torch_dataset(corpus, map_style=False), CriticLoader)
    assert_type(critic(np.zeros(3, np.uint64)), NDArray[np.float32])
