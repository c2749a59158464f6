"""The offline job: what it writes, and that it goes on whatever ended it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Corpus, Session, errors

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048.maintenance import validate_session  # noqa: E402 - after the skip
from tape2048.torch.embedding import (  # noqa: E402
    bf16_bits,
    embed_rows,
    embed_session,
)
from tape2048.torch.tower import Tower, TowerConfig, open_tower  # noqa: E402

from ..builders import NAME, Spec, write_foreign  # noqa: E402
from ..critics import make_games, save_tower  # noqa: E402
from ..naming import Naming  # noqa: E402
from ..tapes import games_on_tape, write_tape  # noqa: E402

CPU = torch.device("cpu")
#: Of 2,400 rows, in chunks of 500: five, the last one of 400.
CHUNK = 500
ROWS = 2400


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("towers")
    for seed in range(2):
        torch.manual_seed(seed)
        save_tower(root / str(seed), Tower(TowerConfig(dim=8, layers=1, heads=2, ffn=8)))
    return [root / "0", root / "1"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    make_games(tmp_path / "selfplay", sessions=1)
    found = Session.open(next((tmp_path / "selfplay").iterdir()))
    assert len(found) == ROWS
    yield found
    assert not (found.path / ".embeddings.partial").exists(), "nothing is left of a job that was finished"


def expected(session: Session, tower: Any) -> Any:
    """Row by row, the tower's vectors, rounded by integer arithmetic."""
    with torch.no_grad():
        vectors = tower.module(torch.from_numpy(session.tokens(slice(None)))).numpy()
    return rounded(vectors)


def rounded(values: Any) -> Any:
    """The upper half of a float32, one more where the lower half is above the middle, or at it and odd."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def check(session: Session, tower: Any) -> None:
    found = session.column("embeddings")
    # A tower's vectors differ in the last bits with the number of rows that go through together.
    mine = (found.values.astype(np.uint32) << 16).view(np.float32)
    theirs = (expected(session, tower).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(mine, theirs, rtol=2**-7, atol=1e-3)
    assert found.info.facts["model_sha"] == tower.sha256


def test_floats_are_rounded_to_nearest_even() -> None:
    """All upper halves, with the lower halves around each border; all that are numbers."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        bits = upper | lower
        values = bits.view(np.float32)
        number = ~np.isnan(values)
        found = bf16_bits(torch.from_numpy(values.copy()))
        np.testing.assert_array_equal(found[number], rounded(values)[number])
        nan = found[~number]
        assert (((nan & 0x7F80) == 0x7F80) & ((nan & 0x7F) != 0)).all(), "NaN stays NaN"


def test_rows_on_tape_have_their_vectors(tmp_path: Path, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    path = write_tape(tmp_path / NAME, games_on_tape(1, 2, 3))
    on_tape = Session.open(path)
    assert embed_session(on_tape, tower, chunk_rows=77).status == "made"
    check(on_tape, tower)
    facts = json.loads((path / "embeddings.json").read_text())
    assert facts["steps_crc32c"] == crc32c((path / "tape.npy").read_bytes())
    assert validate_session(path).ok
    assert embed_session(on_tape, tower).status == "there"
    data = bytearray((path / "tape.npy").read_bytes())
    data[-1] ^= 64
    (path / "tape.npy").write_bytes(data)
    with pytest.raises(errors.ChecksumError, match="The manifest says"):
        embed_session(on_tape, tower)


def test_each_row_has_its_vector(
    session: Session, towers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = open_tower(towers[0])
    seen: list[tuple[int, int]] = []
    naming = Naming(session.path, monkeypatch)
    done = embed_session(session, tower, chunk_rows=CHUNK, progress=lambda *at: seen.append(at))
    assert (done.status, done.rows, done.rows_made) == ("made", ROWS, ROWS)
    naming.assert_flushed("embeddings.bf16.npy", "embeddings.json")
    assert seen == [(0, ROWS), *((rows, ROWS) for rows in (500, 1000, 1500, 2000, ROWS))]
    check(session, tower)
    facts = json.loads((session.path / "embeddings.json").read_text())
    assert (facts["rows"], facts["D"], facts["dtype"], facts["pooling"]) == (ROWS, 8, "bf16", "mean")
    assert facts["steps_crc32c"] == session.manifest.files["steps.npy"].crc32c
    assert np.load(session.path / "embeddings.bf16.npy").shape == (ROWS, 8)
    batch = next(iter(Corpus.open(session.path.parent).batches(64, seed=3, fields=("embeddings", "row"))))
    np.testing.assert_array_equal(
        batch["embeddings"], np.load(session.path / "embeddings.bf16.npy")[batch["row"]]
    )
    again = embed_session(session, tower)
    assert (again.status, again.rows_made) == ("there", 0)


class CrashError(Exception):
    """What a test ends a job with."""


@pytest.mark.parametrize("chunks", [0, 1, 3, 5])
def test_it_goes_on_where_it_ended(session: Session, towers: list[Path], chunks: int) -> None:
    tower = open_tower(towers[0])

    def crash(done: int, _: int) -> None:
        if done >= min(chunks * CHUNK, ROWS):
            raise CrashError

    with pytest.raises(CrashError):
        embed_session(session, tower, chunk_rows=CHUNK, progress=crash)
    assert not (session.path / "embeddings.json").exists()
    # The chunks that stand there keep their size.
    done = embed_session(session, tower, chunk_rows=77)
    assert (done.status, done.rows_made) == ("made", ROWS - min(chunks * CHUNK, ROWS))
    check(session, tower)


def test_embeddings_of_another_tower_are_named(session: Session, towers: list[Path]) -> None:
    first, second = map(open_tower, towers)
    embed_session(session, first)
    with pytest.raises(errors.ColumnError, match=f"{first.sha256}.*expected.*{second.sha256}") as caught:
        embed_session(session, second)
    assert "--force" in str(caught.value.hint)
    check(session, first)
    assert embed_session(session, second, force=True).status == "made"
    check(session, second)


@pytest.mark.parametrize("shard_rows", [None, 70])
def test_a_session_of_others(towers: list[Path], tmp_path: Path, shard_rows: int | None) -> None:
    """Without a manifest nothing says what rows are to be; a tile that the tower does not know is refused."""
    tower = open_tower(towers[0])
    session = Session.open(write_foreign(tmp_path / "theirs", shard_rows=shard_rows))
    assert embed_session(session, tower, chunk_rows=CHUNK).status == "made"
    check(session, tower)

    def change(rows: Any) -> None:
        rows["exps"][1, 3] = 15
        rows["exps"][2, 5] = 16

    wrong = Session.open(write_foreign(tmp_path / "wrong", Spec(change_rows=change), shard_rows=shard_rows))
    with pytest.raises(errors.FieldError, match=r"row 2 \(run 11\) has the exponents .* none above 2"):
        embed_session(wrong, tower)


@pytest.mark.parametrize("shape", [(8,), (99, 8), (100, 8, 1)])
def test_a_tower_that_gives_other_shapes(
    session: Session, towers: list[Path], shape: tuple[int, ...]
) -> None:
    tower = open_tower(towers[0])._replace(module=lambda _: torch.zeros(shape))
    with pytest.raises(errors.ModelError, match=r"returned the shape .* for 100 boards, expected \[100, D\]"):
        embed_rows(tower, session.tokens(slice(0, 100)), CPU)


def test_numbers_that_are_not_finite_are_refused(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    with torch.no_grad():
        tower.module.kind.weight[3, 0] = float("nan")
    with pytest.raises(errors.ModelError, match="not finite for the board"):
        embed_rows(tower, session.tokens(slice(0, 100)), CPU)


def test_few_rows_and_none(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    one = embed_rows(tower, session.tokens([0]), CPU)
    none = embed_rows(tower, session.tokens([]), CPU)
    assert (one.shape[0], none.shape, none.dtype) == (1, (0, one.shape[1]), one.dtype)
    for batch_rows in (0, -1):
        with pytest.raises(ValueError, match=f"batch_rows={batch_rows}; expected at least 1"):
            embed_rows(tower, session.tokens([0]), CPU, batch_rows)


@pytest.mark.parametrize("how", [{"batch_rows": 0}, {"chunk_rows": 0}, {"share": (2, 2)}, {"share": (-1, 2)}])
def test_arguments_that_cannot_be(session: Session, towers: list[Path], how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_rows=|share="):
        embed_session(session, open_tower(towers[0]), **how)
