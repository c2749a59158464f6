"""Batches as tensors: the same rows as without torch, in the same order, however made and resumed."""

import gc
import itertools
import json
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.corpus import Corpus
from tape2048.errors import ColumnError, ConfigError, CorpusError

from ..builders import Game, Spec, write_ours
from ..runs.set_builders import packdat_bytes, write_dataset

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader  # noqa: E402 - after the skip

from tape2048.torch import CriticDataset, CriticLoader, as_torch_dataset, collate  # noqa: E402

ROWS = 1000
BATCH = 64
#: 15 whole batches, and one of 40 rows.
BATCHES = 16
FIELDS = ("tokens", "labels", "weight", "row", "run", "step", "legal", "symmetry")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of 1,000 rows together."""
    root = tmp_path_factory.mktemp("corpus")
    tiles = itertools.cycle((2048, 8192, 16384, 32768))
    for name, steps in (
        ("20250102T030405Z_model=a", (300, 200, 100)),
        ("20250103T030405Z_model=a", (350, 50)),
    ):
        games = [Game(i, count, next(tiles), seed=count) for i, count in enumerate(steps, start=1)]
        write_ours(root / name, Spec(games=games))
    return root


@pytest.fixture(scope="module")
def corpus(root: Path) -> Corpus:
    return Corpus.open(root)


def loader_of(corpus: Corpus, **options: Any) -> CriticLoader:
    return CriticLoader(corpus, **{"batch_size": BATCH, "seed": 7, "fields": FIELDS, **options})


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


def take(loader: CriticLoader, count: int) -> list[list[int]]:
    """Row numbers of the next batches, whatever epochs they are of."""
    found: list[list[int]] = []
    while len(found) < count:
        found += rows_of(itertools.islice(loader, count - len(found)))
    return found


@pytest.fixture(scope="module")
def epochs(corpus: Corpus) -> list[list[list[int]]]:
    """Row numbers of each batch of two epochs, without torch."""
    batches = corpus.batches(BATCH, seed=7, fields=("row",))
    return [rows_of(batches) for _ in range(2)]


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tape2048-prefetch")]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"label_dtype": "float32"}, {"augment": "d4"}, {"drop_last": True}])
def test_tensors_hold_what_the_batches_hold(corpus: Corpus, threads: int, options: dict[str, Any]) -> None:
    plain = corpus.batches(BATCH, seed=7, fields=FIELDS, **options)
    loader = loader_of(corpus, threads=threads, **options)
    assert len(loader) == len(plain)
    for _ in range(2):
        count = 0
        for batch, expected in zip(loader, plain, strict=True):
            assert list(batch) == list(FIELDS)
            for field in FIELDS:
                assert np.array_equal(batch[field].numpy(), expected[field]), field
            count += 1
        assert count == len(plain)
    assert loader.epoch == 2
    assert not threads_of_ours()


def test_a_loader_opens_what_a_corpus_does(corpus: Corpus) -> None:
    """A path, a session, or several of them; batches have attributes, and labels for a loss."""
    session = corpus.sessions[0]
    for source in (session, session.path, str(session.path), [session], [str(session.path)]):
        loader = CriticLoader(source, 16, fields=("tokens", "labels", "highest_tile"))
        batch = next(iter(loader))
        assert len(loader.corpus) == len(session)
        assert batch.labels is batch["labels"]
        assert (batch.labels.dtype, batch.highest_tile.dtype) == (torch.float32, torch.int32)
        assert len(batch.values()) == 3
        with pytest.raises(AttributeError, match="It has tokens, labels"):
            batch.move  # noqa: B018
    for given, dtype in ((torch.bool, torch.bool), (np.float32, torch.float32), ("bool", torch.bool)):
        assert next(iter(CriticLoader(corpus, 16, label_dtype=given))).labels.dtype == dtype
    assert corpus.fetch([0], label_dtype=torch.float32)["labels"].dtype == np.float32


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_of_a_corpus_names_the_loader(corpus: Corpus, workers: int) -> None:
    """It joins no records; a collation of one's own gets them."""
    rows: Any = corpus
    with pytest.raises(TypeError, match=r"write CriticLoader\(corpus, batch_size\)") as caught:
        next(iter(DataLoader(rows, batch_size=8, num_workers=workers)))
    assert str(caught.value).rstrip().endswith("of tape2048.torch")
    own = next(iter(DataLoader(rows, batch_size=8, num_workers=workers, collate_fn=np.array)))
    np.testing.assert_array_equal(own, corpus[:8])


def test_types_and_shapes(corpus: Corpus) -> None:
    batch = next(iter(loader_of(corpus, thresholds=(8192, 16384))))
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in batch.items()}
    assert found == {
        "tokens": (torch.uint8, (BATCH, 16)),
        "labels": (torch.float32, (BATCH, 2)),
        "weight": (torch.float32, (BATCH,)),
        "row": (torch.int64, (BATCH,)),
        "run": (torch.int32, (BATCH,)),
        "step": (torch.int32, (BATCH,)),
        "legal": (torch.uint8, (BATCH,)),
        "symmetry": (torch.uint8, (BATCH,)),
    }
    assert all(tensor.is_contiguous() for tensor in batch.values())


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_free_buffers_are_filled_again(corpus: Corpus, threads: int) -> None:
    loader = loader_of(corpus, threads=threads, prefetch=2)
    places = {batch["tokens"].data_ptr() for batch in loader}
    assert len(places) <= 2 + (2 + threads if threads else 0), "no new memory for each batch"


@pytest.mark.parametrize("workers", [None, 2])
def test_resuming_gives_the_very_same_weights(corpus: Corpus, workers: int | None) -> None:
    """Of runs of 50 to 350 rows, 30 of each are drawn."""
    capped = corpus.capped(30)

    def made() -> CriticLoader:
        found = as_torch_dataset(
            capped, map_style=False, batch_size=40, seed=7, threads=2, fields=("weight", "run")
        )
        assert isinstance(found, CriticLoader)
        return found

    expected = torch.from_numpy(np.concatenate([capped.weights[batch["run"]] for batch in made()]))
    assert sorted(set(expected.tolist())) == pytest.approx([50 / 30, 100 / 30, 200 / 30, 10, 350 / 30])
    first = made()
    found = [batch["weight"].clone() for batch in itertools.islice(first, 2)]
    second = made()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest: Any = second
    if workers is not None:
        rest = second.counting(DataLoader(second, batch_size=None, num_workers=workers))
    found += [batch["weight"].clone() for batch in rest]
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_resuming_gives_the_very_same_rows(
    corpus: Corpus, root: Path, epochs: list[list[list[int]]], threads: int
) -> None:
    # Twice within the first epoch, once in the second, each time in a new loader over a corpus opened anew.
    seen: list[list[int]] = []
    state: dict[str, Any] | None = None
    for count in (5, 6, 9, 2, 10):
        loader = loader_of(
            Corpus.open(root), fields=("row",), threads=threads, seed=7 if state is None else 1
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        seen += take(loader, count)
        state = loader.state_dict()
        assert state == loader.state_dict()
    assert seen == epochs[0] + epochs[1]
    assert (state["epoch"], state["position"]) in {(1, BATCHES), (2, 0)}


@pytest.mark.parametrize("threads", [0, 2])
def test_what_was_made_ahead_does_not_count(corpus: Corpus, threads: int) -> None:
    loader = loader_of(corpus, threads=threads, prefetch=8)
    iterator = iter(loader)
    for taken in range(1, 4):
        next(iterator)
        assert loader.state_dict()["position"] == taken
    del iterator
    gc.collect()
    assert not threads_of_ours()
    assert loader.state_dict()["position"] == 3


@pytest.mark.parametrize("again", [lambda loader: loader, lambda loader: pickle.loads(pickle.dumps(loader))])  # noqa: S301
def test_going_on_after_a_break(corpus: Corpus, epochs: list[list[list[int]]], again: Any) -> None:
    loader = loader_of(corpus)
    first = rows_of(itertools.islice(loader, 4))
    loader = again(loader)
    assert first + rows_of(loader) == epochs[0]
    assert rows_of(loader) == epochs[1]


def test_epochs_by_number(corpus: Corpus, epochs: list[list[list[int]]]) -> None:
    loader = loader_of(corpus)
    loader.set_epoch(1)
    assert rows_of(loader) == epochs[1]
    loader.set_epoch(0)
    assert rows_of(loader) == epochs[0]
    loader.set_epoch(np.int64(1))
    json.dumps(loader.state_dict())
    assert rows_of(loader) == epochs[1]
    loader.set_epoch(1)
    for epoch in (-1, 2**64, 1.0):
        with pytest.raises(ValueError, match="epoch="):
            loader.set_epoch(epoch)
    assert rows_of(loader) == epochs[1], "what is refused changes nothing"


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iteration_ends_when_the_loader_is_moved(corpus: Corpus, threads: int) -> None:
    loader = loader_of(corpus, threads=threads)
    state = loader.state_dict()
    moves: list[Any] = [lambda: loader.load_state_dict(state), lambda: loader.set_epoch(0)]
    moves.append(lambda: next(iter(loader)))
    for move in moves:
        iterator = iter(loader)
        next(iterator)
        move()
        with pytest.raises(RuntimeError, match="moved, or iterated over again"):
            next(iterator)
    assert not threads_of_ours()


# Newer Pythons warn of forks in a process with threads; those of torch and pyarrow are there, and idle.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_data_loader_gives_the_same_batches(
    corpus: Corpus, epochs: list[list[list[int]]], workers: int
) -> None:
    loader = loader_of(corpus, fields=("row", "tokens"))
    through = DataLoader(loader, batch_size=None, num_workers=workers)
    assert len(through) == BATCHES
    for batch, expected in zip(loader.counting(through), epochs[0], strict=True):
        assert batch["row"].tolist() == expected
        assert np.array_equal(batch["tokens"].numpy(), corpus.tokens(batch["row"].numpy()))
    assert rows_of(loader.counting(through)) == epochs[1]
    assert loader.epoch == 2


@forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 4])
def test_data_loader_must_not_join_batches(corpus: Corpus, workers: int, size: int) -> None:
    loader = loader_of(corpus, fields=("row", "tokens"))
    through: Any = DataLoader(loader, batch_size=size, num_workers=workers)
    for batches in (through, loader.counting(through)):
        with pytest.raises(ValueError, match=f"batch_size={size}; expected None"):
            list(batches)


@forks
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_begin_where_the_loader_is(
    corpus: Corpus, epochs: list[list[list[int]]], *, persistent: bool
) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=persistent)
    assert rows_of(itertools.islice(loader.counting(through), 4)) == epochs[0][:4]
    state = loader.state_dict()
    assert rows_of(loader.counting(through)) == epochs[0][4:]
    assert rows_of(itertools.islice(loader.counting(through), BATCHES)) == epochs[1]
    loader.load_state_dict(state)
    assert rows_of(loader.counting(through)) == epochs[0][4:]
    loader.set_epoch(0)
    assert rows_of(loader.counting(through)) == epochs[0]
    assert (loader.epoch, loader.batches.position) == (1, 0)


@forks
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (3, 0), (4, 1)])
def test_other_ranks_and_workers_serve_the_rest(corpus: Corpus, ranks: int, workers: int) -> None:
    options: dict[str, Any] = {"fields": ("row",), "batch_size": 20}
    two = [loader_of(corpus, **options, rank=rank, world_size=2) for rank in (0, 1)]
    found = [rows_of(itertools.islice(loader, 7)) for loader in two]
    state = two[0].state_dict()
    for rank in range(ranks):
        loader = loader_of(corpus, **options, rank=rank, world_size=ranks)
        through = DataLoader(loader, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        next(loader.counting(through))  # of running workers, too
        loader.load_state_dict(state)
        found.append(rows_of(loader.counting(through)))
        assert (loader.epoch, loader.batches.position) == (1, 0)
    served = [row for part in found for rows in part for row in rows]
    assert len(served) == len(set(served)) == ROWS - (ROWS - 280) % ranks


@forks
@pytest.mark.parametrize("workers", [0, 1])
def test_moving_ends_a_counted_iteration(corpus: Corpus, epochs: list[list[list[int]]], workers: int) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=workers)
    state = loader.state_dict() | {"epoch": 1, "position": 2}
    later: list[Any] = []

    def count_again() -> None:
        later.append(loader.counting(through))
        next(later[0])

    for move, rest in (
        (lambda: loader.load_state_dict(state), epochs[1][2:]),
        (lambda: loader.set_epoch(1), epochs[1]),
        (count_again, epochs[0][2:]),
    ):
        loader.set_epoch(0)
        iterator = loader.counting(through)
        next(iterator)
        move()
        with pytest.raises(RuntimeError, match="moved, or iterated over again"):
            next(iterator)
        assert rows_of(later[0] if later else loader.counting(through)) == rest


@forks
@pytest.mark.parametrize("persistent", [False, True])
def test_each_uncounted_pass_is_the_next_epoch(
    corpus: Corpus, epochs: list[list[list[int]]], *, persistent: bool
) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=persistent)
    passes = [rows_of(through) for _ in range(3)]
    assert passes[:2] == epochs
    assert passes[2] not in epochs
    loader.set_epoch(1)
    assert rows_of(through) == epochs[1]
    assert rows_of(loader.counting(through)) == epochs[1]


@forks
@pytest.mark.parametrize("persistent", [False, True])
def test_a_move_while_workers_start_counts(
    corpus: Corpus, epochs: list[list[list[int]]], *, persistent: bool
) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=persistent)
    abandoned = iter(through)  # its workers read the position when they make a batch
    loader.set_epoch(0)
    assert rows_of(through) == epochs[0]
    del abandoned


@forks
@pytest.mark.parametrize("word", [0, 1, 2, -1])
def test_a_position_that_is_being_written_does_not_count(
    corpus: Corpus, epochs: list[list[list[int]]], word: int
) -> None:
    """A worker sees one word of the new position, and the rest as it was; in the last word, a late pass."""
    loader = loader_of(corpus, fields=("row",))
    persistent = DataLoader(loader, batch_size=None, num_workers=1, persistent_workers=True)
    assert rows_of(persistent) == epochs[0]
    before = loader._shared.clone()
    loader.load_state_dict({**loader.state_dict(), "epoch": 1})
    whole = loader._shared.clone()
    assert before[-1] != 0 == whole[-1]
    loader._shared[:] = before
    loader._shared[word] = whole[word]
    rows_of(persistent)
    loader._shared[:] = whole
    assert rows_of(persistent) == epochs[1]
    loader._shared[-1] = before[-1]
    assert rows_of(DataLoader(loader, batch_size=None, num_workers=1)) == epochs[1]


@forks
def test_workers_take_any_seed_and_epoch(corpus: Corpus) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=1, persistent_workers=True)
    list(loader.counting(through))
    loader.load_state_dict({**loader.state_dict(), "seed": 2**64 - 1, "epoch": 2**64 - 1})
    served = rows_of(loader.counting(through))
    loader.load_state_dict({**loader.state_dict(), "epoch": 2**64 - 1})
    assert rows_of(loader) == served


@pytest.mark.parametrize("counted", [False, True])
def test_abandoned_iterations_end_at_exit(root: Path, *, counted: bool) -> None:
    script = f"""
from torch.utils.data import DataLoader
from tape2048 import Corpus
from tape2048.torch import CriticLoader

loader = CriticLoader(Corpus.open({str(root)!r}), 64, fields=("row",))
through = DataLoader(loader, batch_size=None, num_workers=1)
batches = iter(loader.counting(through) if {counted} else loader)
print(len(next(batches)["row"]))
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert (ended.stdout, ended.stderr) == ("64\n", "")


def test_an_epoch_that_was_taken_by_count_is_over(corpus: Corpus, epochs: list[list[list[int]]]) -> None:
    loader = loader_of(corpus, fields=("row",))
    assert [rows_of(itertools.islice(loader, BATCHES)) for _ in range(2)] == epochs
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert rows_of(loader) == [], "the rest of the epoch of a state may be empty"
    assert loader.epoch == 2


@forks
@pytest.mark.parametrize("begun", [False, True])
def test_workers_start_behind_a_counted_epoch(
    corpus: Corpus, epochs: list[list[list[int]]], *, begun: bool
) -> None:
    loader = loader_of(corpus, fields=("row",))
    through = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    if begun:
        assert rows_of(loader.counting(through)) == epochs[0]
        loader.set_epoch(0)
    assert rows_of(itertools.islice(loader, BATCHES)) == epochs[0]
    assert rows_of(through) == epochs[1]


@pytest.mark.parametrize("count", [3, BATCHES, BATCHES + 1])
def test_memory_goes_with_the_loader(corpus: Corpus, count: int) -> None:
    gc.collect()
    gc.disable()
    try:
        loader = loader_of(corpus, fields=("row",))
        assert len(rows_of(itertools.islice(loader, count))) == min(count, BATCHES)
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()


@forks
def test_a_fork_reads_pools_by_itself(corpus: Corpus) -> None:
    loader = loader_of(corpus, fields=("row",), pool_rows=256)
    expected = rows_of(loader)
    loader.set_epoch(0)
    next(iter(loader))
    loader.set_epoch(0)
    through = DataLoader(loader, batch_size=None, num_workers=1, timeout=60)
    assert rows_of(loader.counting(through)) == expected


@forks
def test_workers_do_not_copy_to_a_device(corpus: Corpus) -> None:
    loader = loader_of(corpus, device="meta")
    with pytest.raises(ValueError, match="worker"):
        next(iter(DataLoader(loader, batch_size=None, num_workers=1)))


@forks
@pytest.mark.parametrize("workers", [0, 1])
def test_truncated_rows_end_the_next_epoch(tmp_path: Path, workers: int) -> None:
    """Who reads a page that its file has lost gets SIGBUS, which torch takes for too little shared memory."""
    path = write_ours(
        tmp_path / "20250102T030405Z_model=a", Spec(games=[Game(i, 100) for i in range(1, 101)])
    )
    loader = loader_of(Corpus.open(tmp_path, load="mmap"), threads=0, fields=("row", "step"))
    data_loader = DataLoader(loader, batch_size=None, num_workers=workers)
    assert len(list(data_loader)) == len(loader)
    with (path / "steps.npy").open("r+b") as file:
        file.truncate(8192)
    with pytest.raises(CorpusError, match="found 8192 bytes"):
        next(iter(data_loader))


def test_a_device_that_is_not_there_is_refused_at_once(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        loader_of(corpus, device="cuda:99")
    for device in ("gpu", "cuda:x", "", 3.5):
        with pytest.raises(ConfigError, match=f"found the device {device!r}, expected a name"):
            loader_of(corpus, device=device)


def test_batches_on_a_device_are_the_callers(corpus: Corpus) -> None:
    # "meta" is a device without memory: what is on it shows that it was sent there.
    batches = list(loader_of(corpus, device="meta"))
    assert all(tensor.device.type == "meta" for batch in batches for tensor in batch.values())
    assert [len(batch["tokens"]) for batch in batches] == [BATCH] * 15 + [40]
    on_cpu = next(iter(loader_of(corpus, device="cpu")))
    assert on_cpu["tokens"].device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("threads", [0, 2])
def test_batches_on_a_gpu(corpus: Corpus, epochs: list[list[list[int]]], threads: int) -> None:
    loader = loader_of(corpus, device="cuda", threads=threads, prefetch=1, label_dtype="float32")
    assert loader.pin_memory
    batches = []
    for batch in loader:
        # A long queue before each copy is read: a buffer that is filled too soon would show in it.
        torch.cuda._sleep(20_000_000)
        batches.append({name: tensor + 0 for name, tensor in batch.items() if name != "labels"})
    assert rows_of(batches) == epochs[0]
    for batch in batches:
        assert np.array_equal(batch["tokens"].cpu().numpy(), corpus.tokens(batch["row"].cpu().numpy()))


def test_rows_by_number(corpus: Corpus) -> None:
    data_set = as_torch_dataset(corpus, fields=("tokens", "labels", "run"), thresholds=(8192,))
    assert isinstance(data_set, CriticDataset)
    assert len(data_set) == ROWS
    row = data_set[700]
    expected = corpus.fetch([700], ("tokens", "labels", "run"), thresholds=(8192,))
    assert row["tokens"].tolist() == expected["tokens"][0].tolist()
    assert row["labels"].tolist() == expected["labels"][0].tolist()
    assert (row["run"].dtype, int(row["run"])) == (torch.int32, int(expected["run"][0]))
    many = data_set.__getitems__([5, 999, 5])
    assert torch.equal(many.tensors["tokens"], torch.from_numpy(corpus.tokens([5, 999, 5])))
    assert torch.equal(many[1]["tokens"], data_set[999]["tokens"])
    assert torch.equal(data_set[torch.tensor(999)]["tokens"], data_set[999]["tokens"])  # type: ignore[index]
    with pytest.raises(TypeError, match="row numbers or a mask"):
        data_set[1.7]  # type: ignore[index]
    with pytest.raises(IndexError):
        data_set[ROWS]


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_shuffles_rows_by_number(corpus: Corpus, workers: int) -> None:
    data_set = as_torch_dataset(corpus, fields=("tokens", "row"))
    through = DataLoader(
        data_set,  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(1),
    )
    rows = []
    for batch in through:
        assert np.array_equal(batch["tokens"].numpy(), corpus.tokens(batch["row"].numpy()))
        rows += batch["row"].tolist()
    assert sorted(rows) == list(range(ROWS))
    assert rows != sorted(rows)


def test_torchs_own_collation_works_too(corpus: Corpus) -> None:
    data_set = as_torch_dataset(corpus, fields=("tokens", "labels"), label_dtype="float32")
    batch = next(iter(DataLoader(data_set, batch_size=10)))  # type: ignore[arg-type]
    assert torch.equal(batch["tokens"], torch.from_numpy(corpus.tokens(slice(0, 10))))
    assert batch["labels"].dtype == torch.float32
    rows = data_set.__getitems__(range(10))
    assert collate(rows) is rows.tensors, "what was taken together is not taken apart"


def test_rows_of_several_corpora_one_by_one(corpus: Corpus) -> None:
    parts = [
        as_torch_dataset(part, fields=("tokens", "step")) for part in corpus.split(a=0.5, b=0.5).values()
    ]
    together = ConcatDataset(parts)
    batch = next(iter(DataLoader(together, batch_size=ROWS, collate_fn=collate)))
    expected = [part.fetch(slice(None), ("tokens", "step")) for part in corpus.split(a=0.5, b=0.5).values()]
    for field in ("tokens", "step"):
        assert batch[field].tolist() == [value for part in expected for value in part[field].tolist()]


def test_what_a_notebook_shows(corpus: Corpus) -> None:
    loader = CriticLoader(corpus, 100, device="cpu")
    assert repr(loader) == f"<CriticLoader of {loader.batches!r}, on cpu>"
    dataset = CriticDataset(corpus, fields=("row", "tokens"))
    assert repr(dataset) == f"<CriticDataset of {corpus!r}: row, tokens>"
    assert repr(dataset.__getitems__([3, 4])) == "<RowBatch of 2 rows: row, tokens>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads=-1; expected at least 0"),
        ({"prefetch": 0}, "prefetch=0; expected at least 1"),
        ({"prefetch": 1.5}, r"prefetch=1\.5; expected a whole number"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"fields": ("token",)}, "The nearest is 'tokens'"),
    ],
)
def test_wrong_arguments(corpus: Corpus, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader_of(corpus, **options)
    assert not threads_of_ours()


def test_wrong_arguments_of_a_data_set(corpus: Corpus) -> None:
    for options in ({"fields": ("token",)}, {"label_dtype": "int8"}, {"thresholds": (3,)}):
        with pytest.raises(ValueError, match=r"tokens|int8|3"):
            CriticDataset(corpus, **options)  # type: ignore[arg-type]
    number: Any = 5
    for make in (CriticDataset, CriticLoader):
        with pytest.raises(TypeError, match="expected a Corpus"):
            make(number)


def test_an_error_in_a_thread_comes_out_of_the_loop(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(corpus, threads=2)
    real = loader.batches.fill

    def fail_at_five(batch: Any, *, epoch: int, index: int) -> int:
        if index == 5:
            raise OSError("the disk is gone")
        return real(batch, epoch=epoch, index=index)

    monkeypatch.setattr(loader.batches, "fill", fail_at_five)
    seen: list[list[int]] = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(batch["row"].tolist() for batch in loader)
    assert len(seen) == 5
    assert loader.state_dict()["position"] == 5
    assert not threads_of_ours()


class TestDataSets:
    """``as_torch_dataset`` over a data set, a pack.dat and their views."""

    @pytest.fixture(params=["dataset", "pack"])
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        from tape2048.runs import DataPack, Dataset

        if request.param == "dataset":
            return Dataset(write_dataset(tmp_path / "ds"))
        (tmp_path / "pack.dat").write_bytes(packdat_bytes())
        return DataPack.load(tmp_path / "pack.dat")

    def test_every_row_once_in_shuffled_batches(self, source: Any) -> None:
        names = ("tokens", "labels", "row", "run", "move", "ev_values")
        for rows in (source, source.filter_by_length(20).phase(fraction=(0.25, None))):
            data_set = as_torch_dataset(rows, fields=names, thresholds=(64,), label_dtype="float32")
            assert len(data_set) == len(rows)
            batches = list(DataLoader(data_set, batch_size=16, shuffle=True, collate_fn=collate))
            together = {name: torch.cat([batch[name] for batch in batches]) for name in names}
            order = torch.argsort(together["row"])
            expected = rows.fetch(slice(None), names, thresholds=(64,), label_dtype="float32")
            for name in names:
                found = together[name][order]
                np.testing.assert_array_equal(found.numpy(), expected[name].astype(found.numpy().dtype))
            assert together["run"].dtype == torch.int32

    def test_one_row(self, source: Any) -> None:
        row = as_torch_dataset(source, fields=("tokens", "ev_values"))[5]
        assert (row["tokens"].shape, row["ev_values"].shape) == ((16,), (4,))

    def test_a_loader_of_it(self, source: Any) -> None:
        loader = as_torch_dataset(source, map_style=False, fields=("row", "ev_values"), batch_size=16)
        assert sorted(row for batch in loader for row in batch["row"].tolist()) == list(range(len(source)))

    def test_what_is_refused(self, source: Any) -> None:
        with pytest.raises(ColumnError, match="embeddings"):
            as_torch_dataset(source, fields=("embeddings",))
        with pytest.raises(TypeError, match="expected a Corpus"):
            as_torch_dataset(source[:5])


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_of_columns(corpus: Corpus, workers: int) -> None:
    rows = np.arange(len(corpus))
    extra = {"shorts": rows.astype("u2"), "wide": np.stack([rows, rows], 1) / 4, "flags": rows % 2 > 0}
    how: Any = {"fields": ("row", "seed", "score"), "extra": extra, "weight": "wide_", "batch_size": 100}
    loader = loader_of(corpus, **how | {"extra": extra | {"wide_": rows / 4}})
    seen = 0
    for batch in DataLoader(loader, batch_size=None, num_workers=workers):
        row = batch["row"]
        kinds = {name: tensor.dtype for name, tensor in batch.items()}
        assert kinds == {
            "row": torch.int64, "seed": torch.int64, "score": torch.int32, "shorts": torch.int32,
            "wide": torch.float64, "flags": torch.bool, "weight": torch.float32,
        }  # fmt: skip
        assert torch.equal(batch["shorts"], row.to(torch.int32))
        assert torch.equal(batch["wide"], torch.stack([row, row], 1) / 4)
        assert torch.equal(batch["flags"], row % 2 > 0)
        assert torch.equal(batch["weight"], row / 4)
        seen += len(row)
    assert seen == len(corpus)


@pytest.mark.parametrize("threads", [0, 2])
def test_targets_that_are_no_probabilities_are_rejected(corpus: Corpus, threads: int) -> None:
    taught = np.full((ROWS, 3), 0.5, np.float32)
    taught[700, 1] = np.nan
    loader = loader_of(corpus, extra={"taught": taught}, targets="taught", threads=threads)
    with pytest.raises(CorpusError, match=r"taught is \[0.5, nan, 0.5\] in row 700 .* probabilities"):
        rows_of(loader)


def test_large_unsigned_numbers_are_kept_or_rejected(corpus: Corpus) -> None:
    most = {size: np.full(len(corpus), 2**size - 1, f"u{size // 8}") for size in (8, 16, 32, 64)}
    extra = {f"u{size}": values for size, values in most.items() if size < 64}
    batch = next(iter(loader_of(corpus, fields=("row",), extra=extra)))
    assert {name: (batch[name].dtype, int(batch[name].max())) for name in extra} == {
        "u8": (torch.uint8, 255), "u16": (torch.int32, 65535), "u32": (torch.int64, 2**32 - 1),
    }  # fmt: skip
    assert (
        int(next(iter(loader_of(corpus, fields=("row",), extra={"x": most[64] >> np.uint64(1)})))["x"].max())
        == 2**63 - 1
    )
    with pytest.raises(
        CorpusError, match=f"x is {2**64 - 1}; a tensor of torch.int64 holds at most {2**63 - 1}"
    ):
        next(iter(loader_of(corpus, fields=("row",), extra={"x": most[64]})))
