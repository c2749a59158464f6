"""The offline job: what it writes, and that it goes on whatever ended it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crc32c import crc32c
from tests.recorder.disks import unsaid

from tape2048 import Corpus, Session, errors

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048.maintenance import validate_session  # noqa: E402 - after the skip
from tape2048.session.session import open_embeddings  # noqa: E402
from tape2048.torch import embedding  # noqa: E402
from tape2048.torch.embedding import (  # noqa: E402
    PARTIAL,
    Embedded,
    EmbeddingDraft,
    EmbeddingPlan,
    bf16_bits,
    embed_rows,
    embed_session,
)
from tape2048.torch.tower import Tower, TowerConfig, open_tower, save_tower  # noqa: E402

from ..builders import NAME, Spec, write_foreign  # noqa: E402
from ..critics import make_games  # noqa: E402
from ..naming import Naming  # noqa: E402
from ..tapes import games_on_tape, write_tape  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[3]
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
    assert not (found.path / PARTIAL).exists(), "nothing is left of a job that was finished"


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
    found = open_embeddings(session)
    # A tower's vectors differ in the last bits with the number of rows that go through together.
    mine = (found.values.astype(np.uint32) << 16).view(np.float32)
    theirs = (expected(session, tower).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(mine, theirs, rtol=2**-7, atol=1e-3)
    assert found.model_sha == tower.sha256


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
    with pytest.raises(errors.ChecksumError, match="bytes changed"):
        embed_session(on_tape, tower)


def test_each_row_has_its_vector(
    session: Session, towers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = open_tower(towers[0])
    seen: list[tuple[int, int]] = []
    naming = Naming(session.path, monkeypatch)
    done = embed_session(session, tower, chunk_rows=CHUNK, progress=lambda *at: seen.append(at))
    assert done == Embedded("made", ROWS, ROWS, 8)
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
    assert done == Embedded("made", ROWS, ROWS - min(chunks * CHUNK, ROWS), 8)
    check(session, tower)


@pytest.mark.slow
def test_killed_it_goes_on_where_it_ended(session: Session, tmp_path: Path, monkeypatch: Any) -> None:
    """SIGKILL in the middle of the third chunk: the two before it are there, and are not made again."""
    (tmp_path / "paced_tower.py").write_text(
        "import sys, torch\n"
        "class Paced(torch.nn.Module):\n"
        "    pace = False\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = torch.nn.Parameter(torch.ones(16))\n"
        "    def forward(self, tokens):\n"
        "        if self.pace and len(tokens) > 1:\n"
        "            print('chunk', flush=True)\n"
        "            sys.stdin.readline()\n"
        "        return tokens * self.scale\n"
        "def make(checkpoint):\n"
        "    return Paced()\n"
        "def main(path):\n"
        "    from tape2048 import Session\n"
        "    from tape2048.torch.embedding import embed_session\n"
        "    from tape2048.torch.tower import open_tower\n"
        "    Paced.pace = True\n"
        "    embed_session(Session.open(path), open_tower('paced_tower:make'), chunk_rows=500)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code = f"import paced_tower; paced_tower.main({str(session.path)!r})"
    pipe = subprocess.PIPE
    paths = os.pathsep.join([str(tmp_path), str(CHECKOUT / "sdk")])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for chunk in range(3):
            assert child.stdout.readline() == b"chunk\n"
            if chunk < 2:
                child.stdin.write(b"\n")
                child.stdin.flush()
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    done = embed_session(session, open_tower("paced_tower:make"))
    assert done.rows_made == ROWS - 2 * CHUNK
    values = (open_embeddings(session).values.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(values, session.tokens(slice(None)))


def test_many_processes_share_it(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    made = [embed_session(session, tower, chunk_rows=CHUNK, share=(i, 3)) for i in (1, 0, 2)]
    assert [done.status for done in made] == ["waiting", "waiting", "made"]
    assert [done.rows_made for done in made] == [CHUNK + 400, 2 * CHUNK, CHUNK]
    check(session, tower)


def test_whoever_is_last_publishes_and_the_others_know(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    # The last chunk is another's: the file has its length all the same.
    assert embed_session(session, tower, chunk_rows=CHUNK, share=(1, 2)).status == "waiting"
    tokens = session.tokens(slice(None))
    plan = EmbeddingPlan(
        model_sha=tower.sha256, pooling=tower.pooling, width=8, rows=ROWS,
        steps_crc32c=session.manifest.files["steps.npy"].crc32c, chunk_rows=CHUNK,
    )  # fmt: skip
    with (
        EmbeddingDraft(session.path, plan, (0, 2)) as last,
        EmbeddingDraft(session.path, plan, (1, 2)) as other,
    ):
        for chunk in (0, 2, 4):
            rows = plan.rows_of(chunk)
            last.write(chunk, embed_rows(tower, tokens[rows.start : rows.stop], CPU))
        assert last.publish() is None
        assert other.publish() is None
    check(session, tower)


def test_a_share_is_one_process_s(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])

    def other(_: int, __: int) -> None:
        with pytest.raises(errors.BusyError, match="share 0/1"):
            embed_session(session, tower, chunk_rows=CHUNK)

    embed_session(session, tower, chunk_rows=CHUNK, progress=other)


def test_a_chunk_that_was_lost_is_made_again(session: Session, towers: list[Path]) -> None:
    """A power failure can keep the journal and lose the rows; a torn record counts for nothing."""
    tower = open_tower(towers[0])
    embed_session(session, tower, chunk_rows=CHUNK, share=(0, 2))
    draft = session.path / PARTIAL
    with (draft / "values.npy").open("r+b") as file:
        file.seek(128 + 2 * CHUNK * 16 + 100)
        file.write(b"\xff" * 50)
    with (draft / "journal.0of2").open("ab") as file:
        file.write(b"torn rec")
    with (draft / "journal.1of2").open("wb") as file:
        file.write(b"\0" * 32)
    assert embed_session(session, tower, share=(1, 2)).status == "waiting", (
        "a chunk of the other share is bad"
    )
    done = embed_session(session, tower, share=(0, 2))
    assert (done.status, done.rows_made) == ("made", CHUNK)
    check(session, tower)


def test_a_crash_between_the_two_files(
    session: Session, towers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = open_tower(towers[0])

    def crash(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "replace_file", crash)
        with pytest.raises(CrashError):
            embed_session(session, tower, chunk_rows=CHUNK)
    assert (session.path / "embeddings.bf16.npy").exists()
    with pytest.raises(errors.ColumnError, match="no embeddings"):
        open_embeddings(session)
    done = embed_session(session, tower)
    assert (done.status, done.rows_made) == ("made", 0)
    check(session, tower)


def test_embeddings_of_another_tower_are_named(
    session: Session, towers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = map(open_tower, towers)
    embed_session(session, first)
    with pytest.raises(errors.ColumnError) as caught:
        embed_session(session, second)
    assert first.sha256 in str(caught.value)
    assert second.sha256 in str(caught.value)
    assert "--force" in str(caught.value.hint)
    check(session, first)
    # With force the old ones stay until the new ones are whole, and a job that was ended goes on.
    progress = iter([None, None, CrashError])

    def crash(_: int, __: int) -> None:
        if next(progress, None):
            raise CrashError

    with pytest.raises(CrashError):
        embed_session(session, second, force=True, chunk_rows=CHUNK, progress=crash)
    check(session, first)
    # Power may fail at any time: never do the old facts stand beside the new values.
    naming = Naming(session.path, monkeypatch)
    assert embed_session(session, second, force=True, chunk_rows=CHUNK).rows_made == ROWS - 2 * CHUNK
    naming.assert_flushed("embeddings.bf16.npy", "embeddings.json")
    check(session, second)


def test_an_unfinished_job_of_another_tower(session: Session, towers: list[Path]) -> None:
    first, second = map(open_tower, towers)
    assert embed_session(session, first, chunk_rows=CHUNK, share=(0, 2)).status == "waiting"
    with pytest.raises(errors.ColumnError, match="unfinished job stands here"):
        embed_session(session, second)
    for damaged in (b"{", b'{"model_sha":"\xff"}', b'{"x":' + b"[" * 50_000):
        (session.path / PARTIAL / "plan.json").write_bytes(damaged)
        with pytest.raises(errors.ColumnError, match="malformed"):
            embed_session(session, first)
    embed_session(session, second, force=True)
    check(session, second)


def test_rows_that_changed_are_refused(session: Session, towers: list[Path]) -> None:
    tower = open_tower(towers[0])
    path = session.path / "steps.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(errors.ChecksumError, match="the manifest says"):
        embed_session(Session.open(session.path), tower)


def test_embeddings_of_other_rows_are_refused(session: Session, towers: list[Path], tmp_path: Path) -> None:
    tower = open_tower(towers[0])
    embed_session(session, tower)
    make_games(tmp_path / "others", sessions=1, games=61)
    other = Session.open(next((tmp_path / "others").iterdir()))
    for name in ("embeddings.bf16.npy", "embeddings.json"):
        shutil.copy(session.path / name, other.path / name)
    with pytest.raises(errors.ColumnError, match="made of 2400 rows"):
        embed_session(other, tower)
    assert embed_session(other, tower, force=True).rows == 61 * 40


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
    with pytest.raises(errors.FieldError, match="row 2: found the exponent 16, expected at most 15"):
        embed_session(wrong, tower)


@pytest.mark.parametrize("shape", [(8,), (99, 8), (100, 8, 1)])
def test_a_tower_that_gives_other_shapes(
    session: Session, towers: list[Path], shape: tuple[int, ...]
) -> None:
    tower = open_tower(towers[0])._replace(module=lambda _: torch.zeros(shape))
    with pytest.raises(errors.ModelError, match=r"gave shape .* for 100 boards, expected \[B, D\]"):
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


def test_without_room_nothing_is_begun(
    session: Session, towers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = open_tower(towers[0])
    with monkeypatch.context() as patch:
        full = shutil._ntuple_diskusage(10**6, 10**6, 1000)
        patch.setattr(embedding.shutil, "disk_usage", lambda _: full)
        with pytest.raises(errors.DiskFullError, match="1,000 bytes are free"):
            embed_session(session, tower, chunk_rows=CHUNK)

    # What a job that goes on has written is not asked for again.
    def crash(done: int, _: int) -> None:
        if done >= 4 * CHUNK:
            raise CrashError

    with pytest.raises(CrashError):
        embed_session(session, tower, chunk_rows=CHUNK, progress=crash)
    values = (session.path / PARTIAL / "values.npy").stat()
    full = shutil._ntuple_diskusage(10**6, 10**6, max(0, values.st_size - 512 * values.st_blocks))
    monkeypatch.setattr(embedding.shutil, "disk_usage", lambda _: full)
    assert embed_session(session, tower).rows_made == ROWS - 4 * CHUNK


def test_a_session_without_rows(tmp_path: Path) -> None:
    """A plan of nothing is whole at once."""
    plan = EmbeddingPlan(model_sha="a", pooling="mean", width=4, rows=0, steps_crc32c=0, chunk_rows=10)
    with EmbeddingDraft(tmp_path, plan) as draft:
        assert draft.publish() is None
    assert np.load(tmp_path / "embeddings.bf16.npy").shape == (0, 4)


@pytest.mark.parametrize("from_call", [1, 2, 3])
def test_lost_values_are_not_published(tmp_path: Path, from_call: int) -> None:
    plan = EmbeddingPlan(model_sha="a", pooling="mean", width=4, rows=1, steps_crc32c=0, chunk_rows=1)
    with EmbeddingDraft(tmp_path, plan) as draft:
        draft.write(0, np.full((1, 4), 7, dtype=np.uint16))
        values = tmp_path / PARTIAL / embedding._VALUES
        with unsaid(values, from_call=from_call), pytest.raises(errors.StorageError):
            draft.publish()
        assert draft.publish() is None
    assert np.load(tmp_path / "embeddings.bf16.npy").tolist() == [[7] * 4]


@pytest.mark.parametrize("how", [{"batch_rows": 0}, {"chunk_rows": 0}, {"share": (2, 2)}, {"share": (-1, 2)}])
def test_arguments_that_cannot_be(session: Session, towers: list[Path], how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="share="):
        embed_session(session, open_tower(towers[0]), **how)


def test_rows_of_no_run_have_no_embeddings(tmp_path: Path, towers: list[Path]) -> None:
    """Values of the served rows alone would not be those of the file's rows."""
    found = Session.open(write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs WHERE id = 13")))
    with pytest.raises(errors.ColumnError, match="7 rows of no run") as caught:
        embed_session(found, open_tower(towers[0]))
    assert "tape2048 convert" in str(caught.value.hint)
    assert not (found.path / PARTIAL).exists()
