"""A2T1 files, against files written from the format's description."""

import dataclasses
import os
import struct
import uuid
from pathlib import Path

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


class TestReadAndWrite:
    def test_golden(self) -> None:
        plain = build.game(1, steps_max=12, engine="tape2048 golden é")
        run = read_run(GOLDEN)
        assert run.equals(run_of(plain))
        assert b"".join(run_bytes(run)) == GOLDEN.read_bytes()

    def test_the_arrays_are_views_of_the_map(self) -> None:
        run = read_run(GOLDEN, load="mmap")
        assert str(GOLDEN) in Path("/proc/self/maps").read_text()
        for array in (run.states, run.moves, run.boards):
            assert not array.flags.owndata
            assert not array.flags.writeable
        assert not run.states.flags.aligned

    def test_reading_in_place_of_mapping(self, tmp_path: Path) -> None:
        run = read_run(GOLDEN, load="ram")
        assert str(GOLDEN) not in Path("/proc/self/maps").read_text()
        assert run.equals(read_run(GOLDEN, load="mmap"))
        assert run.equals(read_run(GOLDEN))
        assert not run.moves.flags.writeable
        with pytest.raises(ValueError, match="load"):
            read_run(GOLDEN, load="disk")  # type: ignore[arg-type]
        (tmp_path / "empty").touch()
        with pytest.raises(errors.MagicError):
            read_run(tmp_path / "empty", load="ram")

    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        before = len(open_files())
        kept = [read_run(GOLDEN) for _ in range(5)]
        assert len(open_files()) == before
        assert len(kept) == 5

    @given(st.integers(0, 40), st.text(max_size=30), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
    def test_third_party_reader_and_writer(self, steps: int, engine: str, score: int, tile: int) -> None:
        """Third-party files are readable here, and ours are readable there."""
        plain = dataclasses.replace(
            build.game(steps, steps_max=steps), engine=engine, max_score=score, highest_tile=tile
        )
        data = build.a2t1_bytes(plain)
        run = parse(data)
        assert run.equals(run_of(plain))
        assert b"".join(run_bytes(run)) == data

    def test_a_new_file_and_nothing_else(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a.a2run", run_of(GAME))
        assert (tmp_path / "a.a2run").read_bytes() == build.a2t1_bytes(GAME)
        with pytest.raises(errors.NameTakenError):
            write_run(tmp_path / "a.a2run", run_of(build.game(6, steps_max=2)))
        assert names(tmp_path) == ["a.a2run"]
        assert (tmp_path / "a.a2run").read_bytes() == build.a2t1_bytes(GAME)

    @pytest.mark.parametrize(
        "change",
        [
            *[{"engine": value} for value in ("e" * 65536, 5, "\ud800")],
            *[{"elapsed_s": value} for value in (float("nan"), 1e39, 10**400, "1")],
            *({"start_unix_s": 2**64}, {"start_unix_s": 1.5}, {"max_score": -1}),
            *({"highest_tile": 2**32}, {"highest_tile": "8192"}),
        ],
    )
    def test_facts_that_do_not_fit_are_refused(self, change: dict[str, object], tmp_path: Path) -> None:
        run = run_of(GAME)
        bad = dataclasses.replace(run, meta=RunMeta(**{**_fields(run.meta), **change}))
        with pytest.raises(errors.FieldError, match=next(iter(change))):
            write_run(tmp_path / "a", bad)
        assert names(tmp_path) == []

    def test_a_move_above_3_is_not_written(self) -> None:
        run = run_of(GAME)
        with pytest.raises(errors.FieldError, match="a move is"):
            run_bytes(dataclasses.replace(run, moves=run.moves + np.uint8(4)))


def _fields(meta: RunMeta) -> dict[str, object]:
    return {name: getattr(meta, name) for name in meta.__struct_fields__}


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"version": 2}, errors.VersionError),
            ({"order": 1}, errors.VersionError),
            ({"steps": 2**32 - 1}, errors.TruncatedError),
            ({"steps": 8}, errors.FormatError),
            ({"engine_len": 65535}, errors.TruncatedError),
            ({"engine_len": 0}, errors.FormatError),
        ],
    )
    def test_fields_with_a_checksum_that_fits(
        self, changes: dict[str, int], error: type[errors.FormatError]
    ) -> None:
        with pytest.raises(error) as caught:
            parse(build.a2t1_bytes(GAME, **changes))
        assert caught.value.path == "x"
        assert caught.value.offset is not None

    def test_bytes_between_moves_and_checksum(self) -> None:
        with pytest.raises(errors.FormatError, match=r". The file has 139"):
            parse(build.seal_a2t1(build.a2t1_bytes(GAME)[:-4] + b"\0"))

    def test_a_checksum_that_does_not_fit(self) -> None:
        data = build.a2t1_bytes(GAME)
        with pytest.raises(errors.ChecksumError):
            parse(data[:-1] + bytes([data[-1] ^ 1]))

    def test_a_move_that_there_is_not(self) -> None:
        bad = dataclasses.replace(GAME, moves=[0, 1, 4, *GAME.moves[3:]])
        with pytest.raises(errors.FieldError, match="move 4 at step 2") as caught:
            parse(build.a2t1_bytes(bad))
        assert caught.value.offset == 36 + 9 + 8 * 10 + 2

    def test_an_engine_that_is_not_utf8(self) -> None:
        data = bytearray(build.a2t1_bytes(GAME)[:-4])
        data[38] = 0xFF
        with pytest.raises(errors.FieldError, match="UTF-8") as caught:
            parse(build.seal_a2t1(bytes(data)))
        assert caught.value.offset == 38

    @pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000])
    def test_a_time_that_is_not_finite(self, bits: int) -> None:
        """NaN, a signalling one, and both infinities."""
        data = bytearray(build.a2t1_bytes(GAME)[:-4])
        data[18:22] = struct.pack("<I", bits)
        with pytest.raises(errors.FieldError, match="elapsed_s"):
            parse(build.seal_a2t1(bytes(data)))

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "empty").touch()
        for name in ("fifo", ".", "missing"):
            with pytest.raises(errors.StorageError):
                read_run(tmp_path / name)
        with pytest.raises(errors.MagicError):
            read_run(tmp_path / "empty")


class TestDirectories:
    def test_runs_are_kept_by_day(self, tmp_path: Path) -> None:
        run = run_of(GAME)
        path = shard_path(tmp_path / "traces", run)
        assert path.parent == tmp_path / "traces/20250823"
        write_run(path, run)
        write_run(shard_path(tmp_path / "traces", run, "named"), run)
        unknown = run_of(dataclasses.replace(GAME, start_unix_s=0))
        write_run(shard_path(tmp_path / "traces", unknown, "old"), unknown)
        found = list(scan(tmp_path / "traces"))
        assert found[0].path.name == "old.a2run"
        assert len(found) == 3
        assert all(item.run is not None and item.error is None for item in found)

    def test_runs_are_kept_by_uuid(self, tmp_path: Path) -> None:
        run = run_of(GAME)
        path = shard_path(tmp_path / "traces", run, by="uuid")
        name = path.stem
        assert str(uuid.UUID(name)) == name
        assert path == tmp_path / "traces" / name[:2] / name[2:4] / f"{name}.a2run"
        write_run(path, run)
        given = "ABCD0000-1111-4222-8333-444455556666"
        named = shard_path(tmp_path / "traces", run, given, by="uuid")
        assert named == tmp_path / f"traces/ab/cd/{given.lower()}.a2run"
        write_run(named, run)
        found = list(scan(tmp_path / "traces"))
        assert sorted(item.path for item in found) == sorted([path, named])
        assert all(item.run is not None for item in found)
        for wrong in ("first", "../../x", ""):
            with pytest.raises(ValueError, match="badly formed"):
                shard_path(tmp_path, run, wrong, by="uuid")
        with pytest.raises(ValueError, match="'day' or 'uuid'"):
            shard_path(tmp_path, run, by="hour")  # type: ignore[arg-type]

    def test_a_start_past_every_calendar(self, tmp_path: Path) -> None:
        run = run_of(dataclasses.replace(GAME, start_unix_s=2**60))
        with pytest.raises(errors.FieldError, match="start_unix_s"):
            shard_path(tmp_path, run)

    def test_bad_files_cost_only_themselves(self, tmp_path: Path) -> None:
        data = build.a2t1_bytes(GAME)
        for name, content in {
            "20250101/a.a2run": data, "20250101/b.bin": data[:-1], "20250102/c.run": b"",
            "20250102/d.a2run": data, "20250102/.e.a2run": b"a draft", "20250102/f.txt": b"notes",
        }.items():  # fmt: skip
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        (tmp_path / "20250102/g.a2run").symlink_to("nowhere")
        found = {item.path.name: item for item in scan(tmp_path)}
        assert list(found) == ["a.a2run", "b.bin", "c.run", "d.a2run", "g.a2run"]
        assert [name for name, item in found.items() if item.run is not None] == ["a.a2run", "d.a2run"]
        assert isinstance(found["b.bin"].error, errors.TruncatedError)
        assert isinstance(found["c.run"].error, errors.TruncatedError)
        assert isinstance(found["g.a2run"].error, errors.StorageError)
        assert "b.bin" in str(found["b.bin"].error)

    def test_nothing_of_bad_files_is_held(self, tmp_path: Path) -> None:
        for i in range(20):
            (tmp_path / f"{i}.a2run").write_bytes(b"A2T1" + bytes(2 << 20))  # long enough to be mapped
        found = list(scan(tmp_path, workers=2))
        mapped = Path("/proc/self/maps").read_text()
        assert {type(item.error) for item in found} == {errors.VersionError}
        assert str(tmp_path) not in mapped

    def test_order_is_by_the_parts_of_a_path(self, tmp_path: Path) -> None:
        # As text "a-b/x" would come before "a/x".
        for name in ("a-b", "a", "B"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "x.a2run").write_bytes(build.a2t1_bytes(GAME))
        assert [found.path.parent.name for found in scan(tmp_path)] == ["B", "a", "a-b"]

    def test_an_empty_or_missing_directory_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(errors.NotASessionError):
            scan(tmp_path)
        with pytest.raises(errors.MissingPathError):
            scan(tmp_path / "missing")
