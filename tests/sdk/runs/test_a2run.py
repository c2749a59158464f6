"""A2T1 files, against files written from the format's description."""

import dataclasses
import os
import struct
import uuid
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048 import errors
from tape2048.runs.a2run import parse_run, read_run, run_bytes, shard_path, write_run
from tape2048.runs.files import scan
from tape2048.runs.run import Run, RunMeta

from .. import run_builders as build
from ..builders import names, open_files

GOLDEN = Path(__file__).parents[2] / "data/golden.a2run"
GAME = build.game(5, steps_max=9, engine="engine ü")


def run_of(plain: build.PlainRun) -> Run:
    facts = plain.start_unix_s, plain.elapsed_s, plain.max_score, plain.highest_tile, plain.engine or None
    meta = RunMeta(len(plain.moves), *facts)
    return Run(np.array(plain.states, np.uint64), np.array(plain.moves, np.uint8), meta)


def parse(data: bytes) -> Run:
    return parse_run(np.frombuffer(data, np.uint8), "x")


def test_golden() -> None:
    """Read in place of the map, or into memory; nothing stays open, and nothing can be written."""
    before = len(open_files())
    for load in ("mmap", "ram", None):
        run = read_run(GOLDEN, load=load)
        assert (str(GOLDEN) in Path("/proc/self/maps").read_text()) == (load == "mmap")
        assert run.equals(run_of(build.game(1, steps_max=12, engine="tape2048 golden é")))
        assert b"".join(run_bytes(run)) == GOLDEN.read_bytes()
        for array in (run.states, run.moves, run.boards):
            assert not (array.flags.owndata)
            assert not (array.flags.writeable)
        del run, array
    assert len(open_files()) == before
    with pytest.raises(ValueError, match="load"):
        read_run(GOLDEN, load="disk")  # type: ignore[arg-type]


@given(st.integers(0, 40), st.text(max_size=30), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_third_party_reader_and_writer(steps: int, engine: str, score: int, tile: int) -> None:
    """Third-party files are readable here, and ours are readable there."""
    plain = dataclasses.replace(
        build.game(steps, steps_max=steps), engine=engine, max_score=score, highest_tile=tile
    )
    data = build.a2t1_bytes(plain)
    run = parse(data)
    assert run.equals(run_of(plain))
    assert b"".join(run_bytes(run)) == data


def test_a_new_file_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "a.a2run", run_of(GAME))
    with pytest.raises(errors.NameTakenError):
        write_run(tmp_path / "a.a2run", run_of(build.game(6, steps_max=2)))
    assert names(tmp_path) == ["a.a2run"]
    assert (tmp_path / "a.a2run").read_bytes() == build.a2t1_bytes(GAME)


def test_facts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = run_of(GAME)
    changes: list[dict[str, Any]] = [
        *[{"engine": value} for value in ("e" * 65536, 5, "\ud800")],
        *[{"elapsed_s": value} for value in (float("nan"), 1e39, 10**400, "1")],
        *({"start_unix_s": 2**64}, {"start_unix_s": 1.5}, {"max_score": -1}),
        *({"highest_tile": 2**32}, {"highest_tile": "8192"}),
    ]
    for change in changes:
        bad = dataclasses.replace(run, meta=msgspec.structs.replace(run.meta, **change))
        with pytest.raises(errors.FieldError, match=next(iter(change))):
            write_run(tmp_path / "a", bad)
    with pytest.raises(errors.FieldError, match="a move is"):
        write_run(tmp_path / "a", dataclasses.replace(run, moves=run.moves + np.uint8(4)))
    assert names(tmp_path) == []


def changed(at: int, value: bytes) -> bytes:
    """The game's file with other bytes, and a checksum that fits."""
    data = bytearray(build.a2t1_bytes(GAME)[:-4])
    data[at : at + len(value)] = value
    return build.seal_a2t1(bytes(data))


def test_bad_input() -> None:
    """A class and an offset for each defect, also if the checksum fits."""
    moves = dataclasses.replace(GAME, moves=[0, 1, 4, *GAME.moves[3:]])
    data = build.a2t1_bytes(GAME)
    cases: list[tuple[bytes, type[errors.FormatError], str, int | None]] = [
        (build.a2t1_bytes(GAME, version=2), errors.VersionError, "A2T1 version 2", 4),
        (build.a2t1_bytes(GAME, order=1), errors.VersionError, "byte order 1", 5),
        (build.a2t1_bytes(GAME, steps=2**32 - 1), errors.TruncatedError, "for 4294967295 steps", None),
        (build.a2t1_bytes(GAME, steps=8), errors.FormatError, "for 8 steps", None),
        (build.a2t1_bytes(GAME, engine_len=65535), errors.TruncatedError, "an engine of 65535 bytes", None),
        (build.a2t1_bytes(GAME, engine_len=0), errors.FormatError, "an engine of 0 bytes", None),
        (build.seal_a2t1(data[:-4] + b"\0"), errors.FormatError, "found 139 bytes", None),
        (data[:-1] + bytes([data[-1] ^ 1]), errors.ChecksumError, "CRC-32C", len(data) - 4),
        (build.a2t1_bytes(moves), errors.FieldError, "move 4 at step 2", 36 + 9 + 8 * 10 + 2),
        (changed(38, b"\xff"), errors.FieldError, "UTF-8", 38),
        (b"", errors.MagicError, "magic", 0),
        *(
            (changed(18, struct.pack("<I", bits)), errors.FieldError, "elapsed_s", 18)
            for bits in (0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000)  # NaNs and infinities
        ),
    ]
    for content, error, message, offset in cases:
        with pytest.raises(error, match=message) as caught:
            parse(content)
        assert caught.value.path == "x"
        assert caught.value.offset is not None
        assert offset in {None, caught.value.offset}


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    for name in ("fifo", ".", "missing"):
        with pytest.raises(errors.StorageError):
            read_run(tmp_path / name)
    for load in (None, "ram", "mmap"):
        with pytest.raises(errors.MagicError):
            read_run(tmp_path / "empty", load=load)


def test_runs_are_kept_by_day_or_uuid(tmp_path: Path) -> None:
    run, given = run_of(GAME), "ABCD0000-1111-4222-8333-444455556666"
    unknown, late = (run_of(dataclasses.replace(GAME, start_unix_s=start)) for start in (0, 2**60))
    by_uuid = shard_path(tmp_path / "b", run, by="uuid")
    name = by_uuid.stem
    assert str(uuid.UUID(name)) == name
    paths = {
        shard_path(tmp_path / "a", run, "named"): tmp_path / "a/20250823/named.a2run",
        shard_path(tmp_path / "a", unknown, "old"): tmp_path / "a/19700101/old.a2run",
        by_uuid: tmp_path / "b" / name[:2] / name[2:4] / f"{name}.a2run",
        shard_path(tmp_path / "b", run, given, by="uuid"): tmp_path / f"b/ab/cd/{given.lower()}.a2run",
    }
    for path, expected in paths.items():
        assert path == expected
        write_run(path, run)
    assert uuid.UUID(shard_path(tmp_path / "a", run).stem)
    assert sorted(found.path for found in scan(tmp_path)) == sorted(paths)
    for wrong in ("first", "../../x", ""):
        with pytest.raises(ValueError, match="badly formed"):
            shard_path(tmp_path, run, wrong, by="uuid")
    with pytest.raises(ValueError, match="'day' or 'uuid'"):
        shard_path(tmp_path, run, by="hour")  # type: ignore[arg-type]
    with pytest.raises(errors.FieldError, match="start_unix_s"):
        shard_path(tmp_path, late)


class TestScan:
    def test_bad_files_cost_only_themselves(self, tmp_path: Path) -> None:
        """In the order of a path's parts: as text "a-b/x" would come before "a/x"."""
        v1, v2 = build.a2t1_bytes(GAME), build.a2run2_bytes(GAME)
        for name, content in {
            "a/a.a2run": v1, "B/b.bin": v1[:-1], "B/c.run": b"", "a/d.a2run2": v1, "a/.e.a2run": b"a draft",
            "a/f.txt": b"notes", "a-b/h.a2run2": v2, "a-b/i.a2run2": v2[:-1],
        }.items():  # fmt: skip
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        (tmp_path / "a/g.a2run").symlink_to("nowhere")
        found = {item.path.name: item for item in scan(tmp_path, workers=2)}
        kinds = {name: type(item.error or item.run).__name__ for name, item in found.items()}
        assert list(kinds.items()) == [
            ("b.bin", "TruncatedError"), ("c.run", "TruncatedError"), ("a.a2run", "Run"), ("d.a2run2", "Run"),
            ("g.a2run", "MissingPathError"), ("h.a2run2", "RunV2"), ("i.a2run2", "TruncatedError"),
        ]  # fmt: skip
        assert "b.bin" in str(found["b.bin"].error)
        assert [item.path.name for item in scan(tmp_path, suffixes=(".run",))] == ["c.run"]

    def test_nothing_of_bad_files_is_held(self, tmp_path: Path) -> None:
        for i in range(20):
            (tmp_path / f"{i}.a2run").write_bytes(b"A2T1" + bytes(2 << 20))  # long enough to be mapped
        found = list(scan(tmp_path, workers=2))
        assert {type(item.error) for item in found} == {errors.VersionError}
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()

    def test_an_empty_or_missing_directory_is_an_error(self, tmp_path: Path) -> None:
        for path, error in ((tmp_path, errors.NotASessionError), (tmp_path / "no", errors.MissingPathError)):
            with pytest.raises(error):
                scan(path)
