"""Packs, against packs written from the format's description."""

import dataclasses
import json
import pickle
import runpy
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from tape2048 import errors
from tape2048.runs import Converted, PackReader, PackStats, PackWriter, a2pack as module, convert, open_source
from tape2048.runs.a2run2 import RunV2

from .. import run_builders as build
from ..builders import memory_below, names, open_files, raising
from ..run_builders import ref

DATA = Path(__file__).parents[2] / "data"
GAMES = [
    build.game(seed, steps_max=12 + 5 * seed, engine=engine)
    for seed, engine in enumerate(["a", "b", None, "b", "a", "b", "ü"])
]
#: Every other one as A2T1.
PAYLOADS = [build.a2run2_bytes(g) if i % 2 else build.a2t1_bytes(g) for i, g in enumerate(GAMES)]


def zeros(size: int, compression: str) -> bytes:
    import lz4.frame
    import zstandard

    if compression == "lz4":
        frame: bytes = lz4.frame.compress(bytes(size))
        return frame
    return zstandard.ZstdCompressor().compress(bytes(size))


def write(path: Path, spec: build.PackSpec) -> Path:
    path.write_bytes(build.a2pack_bytes(spec))
    return path


def written(directory: Path, payloads: list[bytes] = PAYLOADS, **spec: Any) -> PackReader:
    return PackReader.open(write(directory / "x", build.PackSpec(payloads, **spec)))


def pack_directory(source: Path, target: Path, workers: int | None = None, **packing: Any) -> Converted:
    return convert(source, target, "a2pack", workers=workers, packing=packing)


@pytest.fixture
def pack(tmp_path: Path) -> PackReader:
    return PackReader.open(write(tmp_path / "x.a2pack", build.PackSpec(PAYLOADS)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory of run files whose path order is that of ``PAYLOADS``."""
    for i, payload in enumerate(PAYLOADS):
        day = tmp_path / f"runs/day{i // 3}"
        day.mkdir(parents=True, exist_ok=True)
        (day / f"{i}.{'a2run2' if i % 2 else 'a2run'}").write_bytes(payload)
    return tmp_path / "runs"


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let packs hold runs of made-up boards."""
    monkeypatch.setattr(module, "check_rules", lambda run: run)


class TestReader:
    def test_golden(self) -> None:
        pack = PackReader.open(DATA / "golden.a2pack")
        assert [pack.kind(i) for i in range(len(pack))] == ["v1", "v2", "v2"]
        assert bytes(pack.get_slice(0).bytes) == (DATA / "golden.a2run").read_bytes()
        assert bytes(pack.get_slice(1).bytes) == (DATA / "golden.a2run2").read_bytes()
        pack.validate()

    def test_the_script_beside_the_golden_files_makes_them(self) -> None:
        script = runpy.run_path(str(DATA / "make_golden.py"))
        for name, content in script["golden"]().items():
            assert (DATA / name).read_bytes() == content

    def test_runs_are_what_was_packed(self, pack: PackReader) -> None:
        assert len(pack) == 7
        for i, (run, game) in enumerate(zip(pack, GAMES, strict=True)):
            assert isinstance(run, RunV2)
            assert run.states.tolist() == game.states
            assert run.meta.engine == game.engine
            assert run.has_branches.any() == bool(i % 2 and any(game.branches))
            assert pack.decode(i).equals(run)
            assert pack[np.int64(i)].equals(run)

    def test_iteration_decodes_ahead_in_order(
        self, pack: PackReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = [pack[i] for i in range(len(pack))]
        both, decode = Barrier(2), PackReader.decode

        def meet(reader: PackReader, i: int) -> RunV2:
            if i < 2:
                both.wait(timeout=30)  # breaks unless another thread decodes meanwhile
            return decode(reader, i)

        monkeypatch.setattr("tape2048.base.threads.available_cores", lambda: 2)
        monkeypatch.setattr(PackReader, "decode", meet)
        assert [one.equals(other) for one, other in zip(pack, expected, strict=True)] == [True] * len(pack)

    def test_slices_are_views(self, pack: PackReader) -> None:
        payload, kind = pack.get_slice(2)
        assert (bytes(payload), kind) == (PAYLOADS[2], "v1")
        assert payload.readonly
        assert np.shares_memory(np.frombuffer(payload, np.uint8), pack._data)

    def test_numbers_that_name_no_run(self, pack: PackReader) -> None:
        wrong: tuple[Any, ...] = (-1, 7, 2**70, 1.0, "1", None, slice(0, 2))
        for i in wrong:
            for look in (pack.get_slice, pack.decode, pack.kind, pack.info):
                with pytest.raises(IndexError if isinstance(i, int) else TypeError, match=r": run|integer"):
                    look(i)

    def test_batches(self, pack: PackReader) -> None:
        for workers in (1, 2, None):
            found = pack.decode_batch([6, 0, 0, 3], workers)
            assert [len(run) for run in found] == [len(GAMES[i].moves) for i in (6, 0, 0, 3)]
            batches = list(pack.iter_batches(3, workers=workers))
            assert [len(batch) for batch in batches] == [3, 3, 1]
            finals = [run.final_board for batch in batches for run in batch]
            assert finals == [run.final_board for run in pack]
        assert [run.meta.engine for run in pack.iter_indices(iter([2, 1]))] == [None, "b"]
        with pytest.raises(IndexError):
            pack.decode_batch([0, 7], workers=2)

    def test_shuffled_batches_have_a_stable_order(self, pack: PackReader) -> None:
        def order(seed: int | None, workers: int = 1) -> list[int]:
            lengths = [len(game.moves) for game in GAMES]
            batches = pack.iter_batches(2, shuffle=True, seed=seed, workers=workers)
            return [lengths.index(len(run)) for batch in batches for run in batch]

        # The order is part of what a seed promises: on every machine, in every release.
        for seed in (0, 3, 2**64 - 1):
            keys = [ref.mix64((seed + (i + 1) * ref.GOLDEN_GAMMA) % ref.WORD) for i in range(7)]
            assert order(seed) == sorted(range(7), key=keys.__getitem__)
        assert order(0, workers=2) == order(0)
        assert order(1) != order(0)
        assert sorted(order(None)) == list(range(7))
        assert len({tuple(order(None)) for _ in range(8)}) > 1

    def test_batches_that_cannot_be(self, pack: PackReader) -> None:
        arguments: tuple[dict[str, Any], ...] = ({"batch_size": 0}, {"batch_size": 1, "workers": 0})
        for each in arguments:
            with pytest.raises(ValueError, match="expected at least 1"):
                list(pack.iter_batches(**each))
        half: Any = 2.5  # no batch ever has so many, and all runs would come as one
        with pytest.raises(ValueError, match=r"batch_size=2\.5; expected a whole number"):
            pack.iter_batches(half)

    def test_pickling_sends_the_path_alone(self, pack: PackReader) -> None:
        sent = pickle.dumps(pack)
        assert len(sent) < 500
        assert len(pickle.loads(sent)) == 7  # noqa: S301 - our own bytes

    def test_reading_writes_and_opens_nothing(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x", build.PackSpec(PAYLOADS))
        before = (path.read_bytes(), path.stat().st_mtime_ns, open_files())
        pack = PackReader.open(path)
        pack.validate()
        assert pack.stats.count == 7
        assert (path.read_bytes(), path.stat().st_mtime_ns, open_files()) == before
        assert names(tmp_path) == ["x"]


class TestStats:
    def test_counted_where_the_file_has_none(self, pack: PackReader) -> None:
        assert pack._layout.stats is None
        lengths = sorted(len(game.moves) for game in GAMES)
        stats = pack.stats
        assert (stats.count, stats.total_steps) == (7, sum(lengths))
        assert (stats.min_len, stats.max_len, stats.mean_len) == (lengths[0], lengths[-1], sum(lengths) / 7)
        assert (stats.p50_len, stats.p90_len, stats.p99_len) == (lengths[3], lengths[6], lengths[6])
        assert stats.engine_counts == {"": 1, "a": 2, "b": 3, "ü": 1}
        assert sum((stats.highest_tile_hist or {}).values()) == 7
        assert pack.stats is stats

    @pytest.mark.parametrize("encode", [build.compact_json, build.stats_postcard])
    def test_taken_from_the_file_where_it_has_them(self, tmp_path: Path, encode: Any) -> None:
        path = tmp_path / "x"
        write(path, build.PackSpec(PAYLOADS, stats=encode(build.stats_facts(GAMES))))
        PackReader.open(path).validate()
        found = build.stats_facts(GAMES) | {"count": 70}
        write(path, build.PackSpec(PAYLOADS, stats=encode(found)))
        assert PackReader.open(path).stats.count == 70
        with pytest.raises(errors.BookkeepingError, match="count=70"):
            PackReader.open(path).validate()

    def test_of_the_reference_writer(self, tmp_path: Path) -> None:
        for count in range(1, 8):
            facts = build.reference_stats(GAMES[:count])
            pack = written(tmp_path, PAYLOADS[:count], stats=build.stats_postcard(facts), data_crc=False)
            pack.validate()
            assert pack.stats == PackStats(**facts)
            assert (pack.stats.highest_tile_hist, pack.stats.engine_counts) == (None, None)

    def test_each_number_is_compared_with_the_runs(self, tmp_path: Path) -> None:
        for name in build.STATS:
            facts = build.reference_stats(GAMES)
            facts[name] += 50
            pack = written(tmp_path, stats=build.stats_postcard(facts))
            with pytest.raises(errors.BookkeepingError, match=name):
                pack.validate()

    def test_of_123_runs(self, tmp_path: Path) -> None:
        """As postcard, too, they begin with a brace."""
        games = GAMES[:1] * 123
        for encode in (build.stats_block, build.stats_json):
            block = encode(games)
            assert block[:1] == b"{"
            pack = written(tmp_path, PAYLOADS[:1] * 123, align=1, stats=block)
            assert pack.stats == PackStats(**build.stats_facts(games))
            pack.validate()

    def test_of_other_content_are_counted_again(self, tmp_path: Path) -> None:
        """Validation finds bytes that are no JSON object."""
        damaged = (build.stats_json(GAMES)[:-1], build.stats_block(GAMES)[:-1])
        for stats in (b'{"runs": 3}', b"{}", b" ", b"[1]", b"{", b"\xff\xff", b"[" * 100_000, *damaged):
            pack = written(tmp_path, stats=stats)
            assert pack.stats.count == 7
            if stats in {b"{}", b'{"runs": 3}'}:
                pack.validate()
                continue
            with pytest.raises(errors.FieldError, match="stats"):
                pack.validate()

    def test_of_no_runs(self, tmp_path: Path) -> None:
        pack = written(tmp_path, [])
        none = {"highest_tile_hist": {}, "engine_counts": {}}
        assert pack.stats == PackStats(0, 0, 0, 0, 0.0, 0, 0, 0, **none)  # type: ignore[arg-type]
        assert list(pack) == []
        pack.validate()


class TestWriter:
    def test_the_bytes_are_those_of_the_description(self, runs: Path, tmp_path: Path) -> None:
        """Entries are aligned, and any number of workers writes the same."""
        for align, workers in ((1, 2), (8, 5), (64, 1), (1 << 20, 2)):
            (tmp_path / "x").unlink(missing_ok=True)
            assert pack_directory(runs, tmp_path / "x", workers, align=align).skipped == ()
            spec = build.PackSpec(PAYLOADS, align=align, stats=build.stats_block(GAMES))
            assert (tmp_path / "x").read_bytes() == build.a2pack_bytes(spec)
        for wrong in (0, 3, 1 << 21, -4):
            with pytest.raises(ValueError, match="power of two"):
                pack_directory(runs, tmp_path / "y", align=wrong)
        assert names(tmp_path) == ["runs", "x"]

    def test_without_entry_checksums(self, runs: Path, tmp_path: Path) -> None:
        pack_directory(runs, tmp_path / "x", entry_crc=False)
        pack = PackReader.open(tmp_path / "x")
        assert {pack.info(i).crc32c for i in range(7)} == {0}
        pack.validate()

    @pytest.mark.parametrize("hint", [0, 7, 1000, 100_000])
    def test_a_wrong_hint_changes_no_byte(
        self, tmp_path: Path, hint: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The index outgrows its place, or leaves some: data move, in several parts that overlap.
        monkeypatch.setattr(module, "_BUFFER_BYTES", 100)
        with PackWriter(tmp_path / "x", align=8, count_hint=hint) as writer:
            for payload in PAYLOADS:
                writer.add(payload)
        spec = build.PackSpec(PAYLOADS, align=8, stats=build.stats_block(GAMES))
        assert (tmp_path / "x").read_bytes() == build.a2pack_bytes(spec)
        assert len(writer) == 7

    def test_an_error_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(errors.TruncatedError), PackWriter(tmp_path / "x") as writer:  # noqa: PT012
            for payload in (PAYLOADS[0], PAYLOADS[0][:-1]):
                writer.add(payload)
        assert names(tmp_path) == []

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "write_all", raising(OSError(28, "No space left on device")))
        with pytest.raises(errors.DiskFullError), PackWriter(tmp_path / "x") as writer:
            writer.add(PAYLOADS[0])
        assert names(tmp_path) == []

    def test_inputs_are_not_held(self, tmp_path: Path, no_rules: None) -> None:
        (tmp_path / "runs").mkdir()
        payload = build.a2t1_bytes(build.PlainRun([1] * 20_001, [0] * 20_000, [None] * 20_000))
        for i in range(60):
            (tmp_path / f"runs/{i}.a2run").write_bytes(payload)
        with memory_below(9_500_000), PackWriter(tmp_path / "x") as writer:  # the buffer
            for path in sorted((tmp_path / "runs").iterdir()):
                writer.add(path.read_bytes())
        assert (tmp_path / "x").stat().st_size > 10_000_000


class TestCompression:
    @pytest.fixture(params=["zstd", "lz4"])
    def compression(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def test_payloads_come_back_byte_for_byte(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Any
    ) -> None:
        """Without the package, the error names the extra."""
        pack_directory(runs, tmp_path / "z", compress=compression, align=1)
        pack = PackReader.open(tmp_path / "z")
        assert [bytes(pack.get_slice(i).bytes) for i in range(7)] == PAYLOADS
        assert (pack.info(0).compression, pack.info(0).raw_length) == (compression, len(PAYLOADS[0]))
        assert pack._layout.data_crc == 0
        pack.validate()
        monkeypatch.setitem(sys.modules, {"zstd": "zstandard", "lz4": "lz4.frame"}[compression], None)
        for use in (
            lambda: PackReader.open(tmp_path / "z").decode(0),
            lambda: pack_directory(runs, tmp_path / "y", compress=compression),
        ):
            with pytest.raises(errors.MissingPackageError) as caught:
                use()
            assert f"tape2048[{compression}]" in (caught.value.hint or "")

    def compressed(self, tmp_path: Path, stored: bytes, raw_length: int, flags: int = 1) -> PackReader:
        def change(entries: list[list[int]]) -> None:
            entries[0][2:4] = 1, flags
            entries[0][5] = raw_length

        return written(tmp_path, [stored], change_index=change)

    def test_lengths_that_do_not_fit(self, tmp_path: Path, compression: str) -> None:
        import lz4.frame
        import zstandard

        size = len(PAYLOADS[0])
        if compression == "zstd":
            sized = zstandard.ZstdCompressor().compress(PAYLOADS[0])
            unsized = zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOADS[0])
        else:
            sized = lz4.frame.compress(PAYLOADS[0])
            unsized = lz4.frame.compress(PAYLOADS[0], store_size=False)

        def entry(content: bytes, raw_length: int) -> PackReader:
            return self.compressed(tmp_path, content, raw_length, 1 if compression == "zstd" else 2)

        for content in (sized, unsized):
            assert bytes(entry(content, size).get_slice(0).bytes) == PAYLOADS[0]
            for raw_length in (0, 1, size - 1, size + 1):
                with pytest.raises(errors.FieldError):
                    entry(content, raw_length).decode(0)
            for more in (b"x", content):
                with pytest.raises(errors.FieldError):
                    entry(content + more, size).decode(0)
            for cut in range(len(content)):
                with pytest.raises(errors.FieldError, match="entry 0"):
                    entry(content[:cut], size).decode(0)

    def test_a_huge_claim_allocates_nothing(self, tmp_path: Path, compression: str) -> None:
        import lz4.frame

        # Magic, a header byte for an eight-byte content size, 2**62, then an empty last block.
        frame = struct.pack("<IBQ", 0xFD2FB528, 0xE0, 2**62) + b"\x01\0\0"
        if compression == "lz4":
            frame = lz4.frame.compress(bytes(4096))
            frame = frame[:6] + (2**62).to_bytes(8, "little") + frame[14:]
        with memory_below(1_000_000), pytest.raises(errors.FieldError):
            self.compressed(tmp_path, frame, 4096, 1 if compression == "zstd" else 2).decode(0)

    def test_more_than_a_game_holds_is_not_decompressed(self, tmp_path: Path, compression: str) -> None:
        # Honest: the frame has what the index says. No game has that many moves.
        payload = zeros(64 << 20, compression)
        pack = self.compressed(tmp_path, payload, 64 << 20, 1 if compression == "zstd" else 2)
        message = "claims 67,108,864 decompressed bytes"
        with memory_below(1_000_000), pytest.raises(errors.FieldError, match=message):
            pack.decode(0)

    def test_the_longest_game_there_could_be(self, tmp_path: Path, compression: Any, no_rules: None) -> None:
        # From two tiles of 2 to sixteen of 32768, by spawned 2s alone; each step as long as a2run2 has them.
        steps = (16 * 32768 - 4) // 2
        legal = (1.0, 1.0, 1.0, 1.0)
        step = build.a2run2_step(2**64 - 1, 0, legal)
        run = build.PlainRun([2**64 - 1] * (steps + 1), [0] * steps, [], engine="e" * (2**16 - 1))
        payload = build.a2run2_meta(run) + build.varint(steps) + step * steps + build.varint(2**64 - 1)
        with PackWriter(tmp_path / "z", compress=compression) as writer:
            writer.add(payload)
            longer = dataclasses.replace(run, states=[1] * (steps + 2), moves=[0] * (steps + 1))
            payload = build.a2run2_meta(longer) + build.varint(steps + 1) + step * (steps + 1) + b"\1"
            with pytest.raises(errors.FieldError, match=f"found {steps + 1} steps; expected at most {steps}"):
                writer.add(payload)
        pack = PackReader.open(tmp_path / "z")
        assert [pack.info(i).compression for i in range(len(pack))] == [compression]
        assert len(pack[0]) == steps
        pack.validate()

    def test_errors_that_are_kept_hold_no_bytes(self, tmp_path: Path, compression: str) -> None:
        size = 8_000_000  # within what a game may have

        def change(entries: list[list[int]]) -> None:
            for entry in entries:
                entry[2:4] = 2, 1 if compression == "zstd" else 2
                entry[5] = size

        spec = build.PackSpec([zeros(size, compression)] * 20, align=1, change_index=change)
        source = open_source(write(tmp_path / "x", spec))
        tracemalloc.start()
        found = list(source.runs(workers=1))
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert {type(one.error) for one in found} == {errors.FormatError}
        assert kept < 1_000_000
        assert peak < 4 * size


class TestJsonLines:
    @pytest.mark.parametrize("by_step", [False, True])
    def test_the_same_bytes_for_any_number_of_workers(
        self, pack: PackReader, tmp_path: Path, by_step: bool
    ) -> None:
        for name, arguments in {"a": {"parallel": False}, "b": {"workers": 2}, "c": {"workers": 5}}.items():
            written = pack.to_jsonl(tmp_path / name, by_step=by_step, **arguments)
            assert written == (tmp_path / name).stat().st_size
        assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1
        lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
        count = sum(len(game.moves) for game in GAMES) if by_step else 7
        assert len(lines) == count
        assert lines[-1]["run_idx"] == 6

    def test_a_bad_entry_leaves_no_file(self, tmp_path: Path) -> None:
        bad = build.a2t1_bytes(GAMES[0])[:-1] + b"?"
        pack = written(tmp_path, [PAYLOADS[0], bad])
        with pytest.raises(errors.ChecksumError, match="entry 1"):
            pack.to_jsonl(tmp_path / "y", workers=2)
        assert names(tmp_path) == ["x"]
        (tmp_path / "y").write_bytes(b"mine")
        with pytest.raises(errors.NameTakenError):
            pack.to_jsonl(tmp_path / "y")


class TestExtract:
    def test_nothing_is_replaced_and_nothing_half_done(self, pack: PackReader, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/run_000005.a2run2").symlink_to(tmp_path / "elsewhere")
        for indices in ([0, 5], [0, 1, 0]):
            with pytest.raises(errors.NameTakenError):
                pack.extract(indices, tmp_path / "out")
        with pytest.raises(IndexError):
            pack.extract([0, 7], tmp_path / "out")
        assert names(tmp_path / "out") == ["run_000005.a2run2"]
        assert not (tmp_path / "elsewhere").exists()


def change(i: int, field: int, value: int) -> Callable[[list[list[int]]], None]:
    """A change of one field of one entry; the checksum of the index fits it."""

    def apply(entries: list[list[int]]) -> None:
        entries[i][field] = value

    return apply


OFFSET, LENGTH, KIND, FLAGS, CRC, RAW, RESERVED = range(7)


class TestBadInput:
    SPEC = build.PackSpec(PAYLOADS[:3], align=64, stats=build.stats_json(GAMES[:3]))
    POSTCARD = dataclasses.replace(SPEC, stats=build.stats_block(GAMES[:3]))

    @pytest.mark.parametrize("spec", [SPEC, POSTCARD])
    def test_a_flip_of_every_byte_is_found_by_validation(self, tmp_path: Path, spec: build.PackSpec) -> None:
        data = bytearray(build.a2pack_bytes(spec))
        right = PackReader.open(write(tmp_path / "x", spec)).stats
        stats_at = data.rindex(spec.stats or b"")
        for at in range(len(data)):
            data[at] ^= 0x55
            try:
                pack = PackReader("x", np.frombuffer(bytes(data), np.uint8))
                pack.validate()
            except errors.FormatError:
                pass
            else:
                # The stats have no checksum. With a name changed they are another writer's: counted anew, or
                # not known.
                assert stats_at <= at < len(data) - 32
                for name in PackStats.__struct_fields__:
                    assert getattr(pack.stats, name) in (getattr(right, name), None)
            data[at] ^= 0x55

    def test_counts_allocate_nothing(self, tmp_path: Path) -> None:
        for count in (4, 2**27, 2**59, 2**63, 2**64 - 1):
            path = write(tmp_path / "x", dataclasses.replace(self.SPEC, header={"count": count}))
            error = errors.TruncatedError if count > 4 else errors.ChecksumError
            with memory_below(1_000_000), pytest.raises(error):
                PackReader.open(path)

    def test_entries_with_checksums_that_fit(self, tmp_path: Path) -> None:
        values = {
            OFFSET: (0, 64, 2**63, 2**64 - 1),
            LENGTH: (1000, 2**32 - 1),
            KIND: (0, 3),
            FLAGS: (3, 0x100),
            RAW: (1,),
            RESERVED: (1, 2**63),
        }
        changes = [change(1, field, value) for field, each in values.items() for value in each]
        for field, spoil in zip([f for f, each in values.items() for _ in each], changes, strict=True):
            path = write(tmp_path / "x", dataclasses.replace(self.SPEC, change_index=spoil))
            error = errors.VersionError if field == FLAGS else errors.FieldError
            with pytest.raises(error, match="entry 1") as caught:
                PackReader.open(path)
            assert (caught.value.path, caught.value.offset) == (str(path), 28 + 32)

    def test_headers_and_footers(self, tmp_path: Path) -> None:
        for header in ({"version": 2}, {"flags": 2}):
            data = bytearray(build.a2pack_bytes(dataclasses.replace(self.SPEC, header=header)))
            if "version" in header:
                data[24] ^= 1  # a newer header may have its checksum elsewhere
            (tmp_path / "x").write_bytes(data)
            with pytest.raises(errors.VersionError) as caught:
                PackReader.open(tmp_path / "x")
            assert caught.value.hint == errors.reader_hint()
        for field in ("data_end", "stats_offset"):
            for value in (0, 1, 2**63, 2**64 - 1):
                spec = dataclasses.replace(self.SPEC, footer={field: value})
                with pytest.raises(errors.FieldError):
                    PackReader.open(write(tmp_path / "x", spec))

    def test_stats_of_another_length(self, tmp_path: Path) -> None:
        data = bytearray(build.a2pack_bytes(self.SPEC))
        at = data.rindex(b'{"count"') - 4
        for length in (0, 2**32 - 1, int.from_bytes(data[at : at + 4], "little") - 1):
            data[at : at + 4] = length.to_bytes(4, "little")
            (tmp_path / "x").write_bytes(data)
            with pytest.raises(errors.FieldError, match="stats"):
                PackReader.open(tmp_path / "x")

    def test_a_bad_payload_costs_that_entry(self, tmp_path: Path) -> None:
        data = bytearray(build.a2pack_bytes(self.SPEC))
        at = data.index(PAYLOADS[1]) + 40
        data[at] ^= 1
        (tmp_path / "x").write_bytes(data)
        pack = PackReader.open(tmp_path / "x")
        assert pack.decode(0).states.tolist() == GAMES[0].states
        for _ in range(2):
            with pytest.raises(errors.ChecksumError, match="entry 1"):
                pack.get_slice(1)
        assert pack.decode(2).states.tolist() == GAMES[2].states
        unchecked = PackReader.open(tmp_path / "x", verify=False)
        assert len(unchecked.get_slice(1).bytes) == len(PAYLOADS[1])

    def test_payload_errors_name_entry_and_offset(self, tmp_path: Path) -> None:
        payload = build.a2run2_bytes(build.PlainRun([1, 3], [2], [None])).replace(
            b"\x01\x02\x00", b"\x01\x07\x00"
        )
        path = write(tmp_path / "x", build.PackSpec([PAYLOADS[0], payload]))
        with pytest.raises(errors.FieldError, match="entry 1: move 7") as caught:
            PackReader.open(path).decode(1)
        assert path.read_bytes()[caught.value.offset or 0] == 7

    def test_the_kind_decides_how_a_payload_is_read(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x", build.PackSpec([PAYLOADS[0]], change_index=change(0, KIND, 2)))
        with pytest.raises(errors.FormatError):
            PackReader.open(path).decode(0)

    def test_a_checksum_that_was_left_out_is_not_missed(self, tmp_path: Path) -> None:
        for part in ("entry_crc", "data_crc"):
            PackReader.open(write(tmp_path / "x", dataclasses.replace(self.SPEC, **{part: False}))).validate()

    def test_zeros_are_what_padding_is(self, tmp_path: Path) -> None:
        data = bytearray(build.a2pack_bytes(dataclasses.replace(self.SPEC, data_crc=False)))
        at = data.index(PAYLOADS[1]) - 1
        assert data[at] == 0
        data[at] = 7
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(errors.FieldError, match="padding") as caught:
            PackReader.open(tmp_path / "x").validate()
        assert caught.value.offset == at

    def test_what_is_no_pack(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(PAYLOADS[0])
        with pytest.raises(errors.MagicError):
            PackReader.open(tmp_path / "x")
        with pytest.raises(errors.StorageError):
            PackReader.open(tmp_path)
        with pytest.raises(errors.StorageError):
            PackReader.open(tmp_path / "missing")
