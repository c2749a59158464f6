"""The trainer: resumption, stages, threads, memory, files after a kill."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from tests.recorder.processes import PATIENCE_S
from tests.sdk.builders import open_files, raising

from tape2048 import errors
from tape2048.base import resources
from tape2048.files.safetensors import decode, encode
from tape2048.files.training_directory import (
    CHECKPOINT,
    METRICS,
    Training,
    TrainingDirectory,
    TrainingProgress,
)
from tape2048.ntuple.lookup import fill_values
from tape2048.ntuple.network import file_facts, load_network, save_network
from tape2048_recorder.ntuple_training import trainer as trainer_module
from tape2048_recorder.ntuple_training.learning import USES, WEIGHT, A, E
from tape2048_recorder.ntuple_training.trainer import (
    NETWORK,
    NETWORK_F32,
    Trainer,
    memory_needed,
    train_player,
    training_counts,
)
from tape2048_recorder.ntuple_training.training_config import (
    PRESETS,
    TrainingConfig,
    load_training_config,
    preset_path,
)

SMALL = {
    "tuples": "0123 0145", "stages": "128", "threads": 1, "seed": 7, "split_moves": 40_000,
    "moves": 100_000,
}  # fmt: skip


def small(**changes: Any) -> TrainingConfig:
    return TrainingConfig(**{**SMALL, **changes})


def state_of(trainer: Trainer) -> list[bytes]:
    """All that decides what the trainer learns next."""
    lanes = [array for lane in trainer._lanes for array in (lane.state, lane.pools, lane.tallies)]
    return [array.tobytes() for array in (trainer._entries, *lanes)]


def resume(directory: Path, config: TrainingConfig) -> Trainer:
    path = directory / CHECKPOINT
    return Trainer.resume(memoryview(path.read_bytes()), path, config)


def weights_of(trainer: Trainer) -> Any:
    """The weights, stage by stage."""
    return trainer._entries[:, WEIGHT].reshape(trainer.layout.stage_count, -1)


class Seen:
    """A view that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: list[TrainingProgress] = []

    def progress(self, progress: TrainingProgress) -> None:
        self.seen.append(progress)

    def event(self, message: str) -> None:
        self.events.append(message)


def test_learning_plays_better() -> None:
    trainer = Trainer(small(moves=600_000, stages="", threads=2))
    trainer.learn(50_000)
    early = trainer.progress()
    trainer.learn(600_000)
    late = trainer.progress()
    assert trainer.done
    assert late.figures["mean_score"] > 1.5 * early.figures["mean_score"] > 1500
    assert late.figures["moves"] >= 600_000
    assert late.figures["games"] > early.figures["games"] > 0
    assert late.figures["moves_per_s"] > 0
    assert late.figures["mean_error"] > 0
    assert late.figures["elapsed_s"] > early.figures["elapsed_s"] > 0


class Call(NamedTuple):
    """A call of the compiled loop that learns."""

    tables: Any
    plays: Any
    lane: Any
    beta: float
    decay: float
    pooling: bool
    guiding: bool
    restart_moves_min: int
    moves_max: int
    scores: Any
    highest: Any


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Call]]:
    """The calls in slices of 2,000 moves, each with the moves that the calls before it made."""
    train, found, made = trainer_module.train, [], 0

    def watched(*args: Any) -> Any:
        nonlocal made
        result = train(*args)
        found.append((made, Call(*args)))
        made += result[1]
        return result

    monkeypatch.setattr(trainer_module, "_SLICE_MOVES", 2_000)
    monkeypatch.setattr(trainer_module, "train", watched)
    return found


def learning(calls: list[tuple[int, Call]]) -> list[tuple[int, Call]]:
    """The calls that do more than compile."""
    return [(moves, call) for moves, call in calls if call.moves_max]


def test_the_rate_falls_over_the_last_moves(calls: list[tuple[int, Call]]) -> None:
    annealed = Trainer(small(stages="", anneal_moves=40_000, beta=0.5))
    annealed.learn(10**9)
    slices = learning(calls)
    assert {call.beta for moves, call in slices if moves <= 60_000} == {0.5}
    falling = [call.beta for moves, call in slices if moves > 60_000]
    assert 0 < falling[-1] < 0.06
    assert falling == [0.5 * (100_000 - moves) / 40_000 for moves, _ in slices if moves > 60_000]
    plain, same = Trainer(small(stages="")), Trainer(small(stages="", anneal_moves=40_000))
    for moves in (55_000, 10**9):
        plain.learn(moves)
        same.learn(moves)
        assert (state_of(same) == state_of(plain)) == (moves == 55_000)


def test_games_are_guided_until_the_rate_falls(calls: list[tuple[int, Call]]) -> None:
    Trainer(small(**POOLS, anneal_moves=30_000)).learn(10**9)
    assert {call.plays.guides for _, call in calls} == {(np.uint64(POOLS["guide_from"]),)}
    assert {(moves < 70_000, call.guiding) for moves, call in learning(calls)} == {
        (True, True),
        (False, False),
    }


def test_rates_stay_positive_with_several_threads(
    calls: list[tuple[int, Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(small(moves=20_000, stages="", threads=2))
    phase = trainer._phase

    def slow(moves: int) -> tuple[float, bool, bool]:
        if threading.current_thread().name == "lane_1":  # until the other one has learned all that is left
            end = time.monotonic() + PATIENCE_S
            while not trainer.done and time.monotonic() < end:
                time.sleep(0.01)
        return phase(moves)

    monkeypatch.setattr(trainer, "_phase", slow)
    trainer.learn(10**9)
    assert {call.beta for _, call in calls} == {1.0}
    assert np.isfinite(trainer._entries).all()


def test_moves_are_chosen_by_the_values_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(small(tuples="0123 0145 01245 012345", stages="128 256"))
    draws = np.random.default_rng(3)
    trainer._counts.parted = True
    trainer._entries[:, WEIGHT] = draws.normal(size=trainer.layout.entries) * 1000
    boards = draws.integers(0, 2**64, size=5000, dtype=np.uint64)
    expected, found = trainer.network().values(boards), np.empty(len(boards), np.float32)

    def train(_tables: Any, plays: Any, *_: Any) -> Any:
        fill_values(plays.places, plays.table, plays.scales, boards, found)
        return 0, 10**9, 0.0

    monkeypatch.setattr(trainer_module, "train", train)
    trainer.learn(1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_it_ends_at_the_configured_number_of_moves() -> None:
    trainer = Trainer(small())
    trainer.learn(10**9)
    assert trainer.done
    assert 100_000 <= trainer.moves < 105_000
    before = state_of(trainer)
    trainer.learn(10**9)
    assert state_of(trainer) == before
    exactly = Trainer(small(moves=trainer.moves))
    exactly._counts.moves = trainer.moves
    assert exactly.done


def test_a_seed_decides_the_network_with_any_large_restart_limit() -> None:
    settings = ({}, {}, {"seed": 8}, {"restart_moves_min": 1 << 20}, {"restart_moves_min": 1 << 64})
    found = [Trainer(small(**one)) for one in settings]
    for trainer in found:
        trainer.learn(20_000)
    one, two, other, large, larger = map(state_of, found)
    assert one == two != other
    assert one != large == larger


def test_a_stop_or_a_failing_tick_ends_the_threads() -> None:
    stop = threading.Event()
    stop.set()
    trainer = Trainer(small(moves=10**12))
    trainer.learn(10**12, stop=stop)
    assert trainer.moves == 0
    with pytest.raises(errors.StorageError, match="the disk is gone"):
        trainer.learn(10**12, tick=raising(errors.StorageError("the disk is gone")))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]


def test_an_error_in_a_thread_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real, start = trainer_module.train, threading.Thread.start
    trainer = Trainer(small(moves=10**12, threads=3))

    def train(tables: Any, plays: Any, lane: Any, *args: Any) -> Any:
        if lane is trainer._lanes[0]:
            raise MemoryError
        return real(tables, plays, lane, *args)

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "lane_2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(trainer_module, "train", train)
    with pytest.raises(MemoryError):
        trainer.learn(10**12)
    monkeypatch.setattr(trainer_module, "train", real)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        trainer.learn(10**12)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]


def test_values_out_of_range_end_the_training() -> None:
    with pytest.raises(errors.ConfigError, match="range of float32"):
        Trainer(small(initial_value=3e38, beta=1.0)).learn(50_000)


def test_an_unsplit_network_values_late_boards() -> None:
    trainer = Trainer(small(split_moves=10**9))
    trainer.learn(30_000)
    before, after = (np.array([board], dtype=np.uint64) for board in (0x6100 << 48, 0x7100 << 48))
    assert weights_of(trainer)[0].any()
    assert not weights_of(trainer)[1].any()
    weights_of(trainer)[0, :] += 1
    network = trainer.network()
    assert network.values(before)[0] != 0
    one = Trainer(small(stages=""))
    one._entries[:] = trainer._entries[: one.layout.entries]
    assert network.values(after)[0] == one.network().values(after)[0] != 0


def test_stages_part_with_what_the_first_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(small())
    parted: list[tuple[Any, Any, int]] = []
    part = Trainer._split_stages

    def watch(self: Trainer) -> None:
        part(self)
        parted.append((weights_of(self).copy(), self._entries[:, [E, A]].reshape(2, -1), self.moves))

    monkeypatch.setattr(Trainer, "_split_stages", watch)
    trainer.learn(10**9)
    ((table, coherence, moves),) = parted
    assert 40_000 <= moves < 45_000
    assert np.array_equal(table[0], table[1])
    assert coherence[0].any()
    assert np.array_equal(coherence[0] * np.float32(0.1), coherence[1])
    after = weights_of(trainer)
    assert not np.array_equal(after[0], after[1]), "each goes on by itself"


def test_threads_play_by_and_learn_into_the_same_tables(
    calls: list[tuple[int, Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, meeting, met = trainer_module.train, threading.Barrier(3), set[int]()

    def meet(*args: Any) -> Any:
        """After its first slice, each thread waits for the others: a busy machine may run them in turn."""
        result = train(*args)
        if result[1] and threading.get_ident() not in met:
            met.add(threading.get_ident())
            meeting.wait(60)
        return result

    monkeypatch.setattr(trainer_module, "train", meet)
    trainer = Trainer(small(threads=3, moves=60_000, split_moves=20_000))
    started = [lane.state.tobytes() for lane in trainer._lanes]
    trainer.learn(20_000)
    met.clear()  # the stages are split: other threads
    trainer.learn(10**9)
    assert all(call.tables.entries is trainer._entries for _, call in calls)
    assert all(np.shares_memory(call.plays.table, trainer._entries) for _, call in calls)
    states = [lane.state.tobytes() for lane in trainer._lanes]
    assert len(set(states) | set(started)) == 6, "each has games of its own, and all have played"
    assert trainer.moves >= 60_000
    assert np.isfinite(trainer._entries).all()


POOLS = {
    "stages": "64 128 192", "pool_boards": 3, "goals": "256", "guide_from": 192,
    "restart_moves_min": 10**6,
}  # fmt: skip


def test_pools_balance_the_stages() -> None:
    trainer = Trainer(small(**POOLS))
    trainer.learn(40_000)
    assert not any(tally.begun or tally.entered for tally in trainer.progress().figures["stages"]), (
        "not yet split"
    )
    trainer.learn(10**9)
    progress = trainer.progress()
    learned = [tally.learned for tally in progress.figures["stages"]]
    assert sum(learned) == pytest.approx(60_000, rel=0.05), "since the stages split"
    assert max(learned) < 2 * min(learned), "but for games that go on into the last one"
    assert all(tally.entered for tally in progress.figures["stages"][1:])
    assert all(tally.begun for tally in progress.figures["stages"][1:3])
    assert progress.figures["stages"][0][1:] == (0, 0)
    assert progress.figures["goals"] > 0
    assert progress.figures["reach"][2048] == 0


def test_added_stages_start_from_old_ones(tmp_path: Path) -> None:
    trainer = Trainer(small(moves=60_000, stages="64"))
    trainer.learn(10**9)
    trainer.save(tmp_path / CHECKPOINT)
    more = resume(tmp_path, small(stages="32 64 192", pool_boards=2))
    old, new = (one._entries.reshape(one.layout.stage_count, -1, 4) for one in (trainer, more))
    for stage, (source, memory) in enumerate([(0, 1), (0, 0.1), (1, 1), (1, 0.1)]):
        expected = old[source] * np.array([1, memory, memory, memory == 1], np.float32)
        assert np.array_equal(new[stage], expected), stage
    assert more.moves == trainer.moves
    more.learn(10**9)
    assert more.done
    assert all(tally.learned for tally in more.progress().figures["stages"])
    for stages in ("128", "32 128", ""):
        with pytest.raises(errors.StateError, match="stages = '64', not"):
            resume(tmp_path, small(stages=stages))


@pytest.mark.parametrize("quantised", [False, True])
def test_a_training_starts_from_a_network(tmp_path: Path, *, quantised: bool) -> None:
    first = Trainer(small(stages="64 256"))
    first.learn(10**9)
    network = first.network().quantised(4.0) if quantised else first.network()
    save_network(network, tmp_path / "first.ntuple")
    config = small(tuples="0145 01245 0123", stages="32 64 256 320")
    trainer = Trainer(config)
    trainer.start_from(str(tmp_path / "first.ntuple"))
    boards = np.random.default_rng(4).integers(0, 2**64, 500, np.uint64) & np.uint64(0x7777777777777777)
    found = trainer.network()
    np.testing.assert_allclose(found.values(boards), network.values(boards), rtol=1e-5, atol=0.01)
    known, new = found.layout.tables(trainer._entries)[2, 2], found.layout.tables(trainer._entries)[2, 1]
    used = known[:, WEIGHT] != 0
    assert 0 < used.sum() < used.size
    rates = known[:, E] / known[:, A]
    assert rates[used].max() < rates[~used].min() == new[0, E] / new[0, A] < 0.1, "all start low"
    assert not new[:, WEIGHT].any()
    trainer.learn(20_000)
    assert new[:, WEIGHT].any()
    assert trainer.network().facts["from"] == file_facts(str(tmp_path / "first.ntuple"))["sha256"]


def test_a_network_of_another_layout_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "first.ntuple")
    save_network(Trainer(small()).network(), path)
    for config in (small(tuples="0123 0146"), small(stages="256"), small(stages="")):
        expected = (
            f"'0123 0145' and the stages '128', expected only tuples of '{config.tuples}' and stages of "
        )
        with pytest.raises(errors.ConfigError, match=f"{expected}'{config.stages}'") as caught:
            Trainer(config).start_from(path)
        assert caught.value.path == path


def test_a_resumed_training_keeps_its_start(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_network(Trainer(small(initial_value=len(name) + ord(name[0]))).network(), tmp_path / name)
    out, one, stop = tmp_path / "out", str(tmp_path / "one"), threading.Event()
    first, second, third = Seen(), Seen(), Seen()
    train_player(small(moves=2_000), out, first, stop, start=one)
    assert first.events[0] == f"starting from the network {one}"
    for view, start in ((second, one), (third, None)):
        trainer = train_player(small(moves=trainer_moves(out) + 1), out, view, stop, start=start)
        assert view.events[0].startswith("continuing from")
        assert trainer.network().facts["from"] == file_facts(one)["sha256"]
    with pytest.raises(errors.StateError, match="has from = "):
        train_player(small(), out, Seen(), stop, start=str(tmp_path / "two"))


@pytest.mark.parametrize("split_moves", [2_000, 10**9])
def test_a_training_counts_updates(tmp_path: Path, split_moves: int) -> None:
    """The counts are those of the checkpoint beside the network, if it is the network's own."""
    path, config = tmp_path / NETWORK, small(moves=9_000, split_moves=split_moves)
    trainer = train_player(config, tmp_path, Seen(), threading.Event())
    network = load_network(str(path))
    counts = training_counts(network, path)
    assert counts is not None
    stages, uses = counts.reshape(2, -1), trainer._entries[:, USES].reshape(2, -1)
    is_split = split_moves < config.moves
    assert np.array_equal(stages, uses if is_split else uses[[0, 0]])
    assert bool(uses[1].any()) == is_split, "from the split on, counts of late boards start at 0"
    assert 14 * trainer.moves < uses.sum() <= 16 * trainer.moves, "equal entries of a board count once"
    more = train_player(small(moves=12_000, split_moves=split_moves), tmp_path, Seen(), threading.Event())
    assert training_counts(network, path) is None, "of a checkpoint after more moves"
    more._entries[:, USES] = 0  # as from earlier versions
    more.save(tmp_path / CHECKPOINT)
    assert training_counts(load_network(str(path)), path) is None


def trainer_moves(out: Path) -> int:
    return int(load_network(str(out / NETWORK_F32)).facts["moves"])


def test_another_or_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    Trainer(small()).save(path)
    whole = path.read_bytes()
    other = {
        "tuples = '0123 0145', not '0123 0146'": {"tuples": "0123 0146"},
        "stages = '128', not '256'": {"stages": "256"},
        "seed = 7, not 8": {"seed": 8},
        "initial_value = 0.0, not 1.0": {"initial_value": 1.0},
        "checkpoint of 1 thread, expected 2": {"threads": 2},
    }
    for said, changes in other.items():
        with pytest.raises(errors.StateError, match=said):
            resume(tmp_path, small(**changes))
    header = int.from_bytes(whole[:8], "little") + 8
    damaged = [whole[:end] for end in (0, 7, 8, 100, header, header + 1, len(whole) - 1)]
    damaged += [whole + b"x", b"{}" * 500, whole.replace(b"n-tuple checkpoint 4", b"n-tuple checkpoint 9")]
    damaged += [whole.replace(b'\\"moves\\":0', b'\\"moves\\":a')]
    for at in (header, header + 16 * 4 * 16**4, len(whole) - 1):  # in the entries, the lanes, the tallies
        damaged.append(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    arrays, texts = decode(whole, "")
    spoilt: list[dict[str, Any]] = [
        {**arrays, "entries": arrays["entries"][:-1]},
        {**arrays, "entries": arrays["entries"].astype(np.int16)},
        {**arrays, "lanes": arrays["lanes"][:, :2]},
        {**arrays, "lanes": np.array(7, dtype=np.uint64)},
        {name: array for name, array in arrays.items() if name != "lanes"},
    ]
    for data in (*damaged, *(b"".join(encode(found, texts)) for found in spoilt)):
        path.write_bytes(data)
        with pytest.raises(errors.StateError) as caught:
            resume(tmp_path, small())
        assert caught.value.path == str(path)
        assert caught.value.hint


def test_too_little_memory_is_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tuples="012456 012345", stages="8192")
    entries = 2 * 2 * 16**6
    assert memory_needed(config) == entries * (16 + 4 + 2), "the network that ships is int16"
    assert memory_needed(msgspec.structs.replace(config, quantise_step=0.0)) == entries * (16 + 4)
    monkeypatch.setattr(resources, "ram_available", lambda: 700_000_000)
    with pytest.raises(errors.ConfigError, match=r"0\.7 GB of free memory, expected 1\.5 GB") as caught:
        Trainer(config)
    assert "fewer stages" in (caught.value.hint or "")


def test_a_training_leaves_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "METRICS_INTERVAL_S", 0.0)
    view = Seen()
    out = tmp_path / "a/b"
    trainer = train_player(small(downgrade=4096), out, view, threading.Event())
    assert trainer.done
    names = {path.name for path in out.iterdir()}
    assert names == {CHECKPOINT, METRICS, NETWORK, NETWORK_F32}
    exact = load_network(str(out / NETWORK_F32))
    assert np.array_equal(exact.table, trainer._entries[:, WEIGHT])
    assert exact.facts["moves"] == trainer.moves
    assert exact.facts["training"]["tuples"] == SMALL["tuples"]
    train_player(small(quantise_step=0.0, moves=1000), tmp_path / "f32", Seen(), threading.Event())
    assert load_network(str(tmp_path / "f32" / NETWORK)).table.dtype == np.float32
    shipped = load_network(str(out / NETWORK))
    assert np.array_equal(shipped.table, exact.quantised(16.0).table)
    assert shipped.downgrade == 4096
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    assert [line["moves"] for line in lines] == sorted(line["moves"] for line in lines)
    assert lines[-1]["moves"] == trainer.moves
    assert set(lines[-1]["reach"]) >= {"2048", "4096", "8192", "16384", "32768"}
    assert set(lines[-1]) == set(trainer.progress().figures)
    assert view.seen
    assert f"checkpoint at {trainer.moves:,} moves" in view.events


def test_metrics_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    train_player(small(moves=20_000), tmp_path, Seen(), threading.Event())
    path = tmp_path / METRICS
    kept = path.read_text()
    # What a kill leaves: lines that the checkpoint does not know of, and half of one.
    path.write_text(kept + '{"moves":99999}\nnonsense\n{"moves":1}\n{"mov')
    train_player(small(moves=30_000), tmp_path, Seen(), threading.Event())
    lines = path.read_text().splitlines(keepends=True)
    assert "".join(lines[:-1]) == kept + '{"moves":1}\n'
    assert 30_000 <= json.loads(lines[-1])["moves"] < 35_000


@pytest.mark.parametrize("when", ["before", "while it compiles"])
def test_an_early_stop_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    stop = threading.Event()
    if when == "before":
        stop.set()
    monkeypatch.setattr(Trainer, "learn", lambda *_, **__: stop.set())
    view = Seen()
    trainer = train_player(small(), tmp_path, view, stop)
    assert trainer.moves == 0
    assert list(tmp_path.iterdir()) == []
    assert view.events == ["stopped before the first moves: no network is written"]


def test_metrics_are_written_every_ten_seconds_of_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lines = 1000.0, []
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: now))
    trainer, view = Trainer(small()), Seen()
    training = Training(TrainingDirectory(tmp_path, "moves"), view, lambda: trainer.moves == 200)

    def learn(moves: int, *, stop: threading.Event, tick: Callable[[], None]) -> None:
        nonlocal now
        assert moves == SMALL["moves"]
        for _ in range(200):
            now += 0.5
            trainer._counts.moves += 1
            tick()
            path = tmp_path / METRICS
            lines.append(len(path.read_bytes().splitlines()) if path.exists() else 0)
        assert stop.is_set()

    monkeypatch.setattr(trainer, "learn", learn)
    before = open_files()
    assert len(list(trainer.train(training))) == 1
    assert lines == [k // 20 for k in range(1, 201)]
    assert len((tmp_path / METRICS).read_bytes().splitlines()) == 10, "none without a new move"
    assert len(view.seen) == 200
    assert open_files() == before


@pytest.mark.parametrize("name", [name for name in PRESETS if preset_path(name).exists()])
def test_presets_are_configurations(name: str) -> None:
    config = load_training_config(preset_path(name))
    assert config.layout.entries * 4 < 3e9
    assert config.moves >= 10**8
    assert preset_path("small").exists()
    with pytest.raises(errors.ConfigError, match="no preset is called 'huge'") as caught:
        preset_path("huge")
    assert "small, fast" in (caught.value.hint or "")


def test_a_flag_counts_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('tuples = "0123 4567"\nseed = 3\nmoves = 5\n')
    config = load_training_config(path, {"moves": "50_000_000_000", "seed": None, "threads": "1e0"})
    assert (config.tuples, config.seed, config.moves, config.threads) == ("0123 4567", 3, 50 * 10**9, 1)
    assert config.decay == TrainingConfig().decay
    assert TrainingConfig(threads=0).thread_count >= 1


INVALID = [
    ("tuple = 1", "nearest is 'tuples'"),
    ("goal = 8192", "'goal' was removed: `goals` lists"),
    ('tuples = "012"', "groups of 4 to 6 digits"),
    ('tuples = "0132"', "ascending"),
    ('tuples = "0123 0123"', "each once"),
    ('stages = "8192 4096"', "ascending"),
    ('stages = "0"', "ascending"),
    ('stages = "1002"', "ascending"),
    (f'stages = "{"9" * 5000}"', "ascending"),
    ("stages = 8192", "ascending"),
    ("beta = 0", "above 0"),
    ("decay = 1.5", "from 0 to 1"),
    ("moves = 0", "of at least 1"),
    ("moves = nan", "moves"),
    ("threads = -1", "threads"),
    ("seed = 1.5", "seed"),
    ("checkpoint_s = 0", "above 0"),
    ("quantise_step = 1e39", "from 0 to 1000000"),
    ("initial_value = inf", "initial_value"),
    ("downgrade = 5", "found downgrade = 5, expected 0 or a tile from 4 to 32768"),
    ("downgrade = -1", "downgrade"),
    ('goals = "8192 4096"', r"goals \[8192, 4096\], expected tiles .* in ascending order"),
    ('goals = "102"', r"goals \[102\], expected tiles from 4 to 32768, or sums"),
    ("guide_from = 102", r"guide_from \[102\], expected tiles from 4 to 32768, or sums"),
    ("a = [", "malformed TOML"),
]


def test_an_invalid_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "player.toml"
    for text, said in INVALID:
        path.write_text(f"# ours\n{text}\n")
        with pytest.raises(errors.ConfigError, match=said) as caught:
            load_training_config(path)
        assert str(caught.value).startswith(str(path)), text
        assert not text.startswith("tuple =") or "--print-config" in (caught.value.hint or "")
    with pytest.raises(errors.ConfigError, match="No such file"):
        load_training_config(tmp_path / "none.toml")
