"""Nodes of a fleet, with real agents, recorders and stores: every game once, whoever is killed."""

import contextlib
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.recorder.processes import environment, kill, wait_until
from tests.sdk.store_servers import CLOUDS, KINDS, fetch_session, store_url

from tape2048 import Corpus
from tape2048.errors import (
    BusyError,
    ConfigError,
    DiskFullError,
    FleetError,
    NameTakenError,
    StorageError,
    StoreError,
    TapeError,
)
from tape2048.session.session import Session, sessions
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import RemoteName, list_sessions
from tape2048_recorder.fleet import agent as agents, launching, plan as plans
from tape2048_recorder.fleet.agent import Agent, Onlooker, Shipper, read_beat
from tape2048_recorder.fleet.plan import (
    claim_lease,
    create_fleet,
    node_settings,
    read_drain,
    read_plan,
    refuse_differences,
)
from tape2048_recorder.fleet.spool import Spool, agent_at_work
from tape2048_recorder.record_options import NUMBER_BITS, RecorderConfig, load_config
from tape2048_recorder.recorder import run
from tape2048_recorder.status.status_report import Process, read_snapshot

from ..checks import Listener

COMMAND = [sys.executable, "-m", "tape2048_tools.cli"]
PINNED: dict[str, Any] = {"player": "random", "seed": 77, "storage": "tape", "rotate_steps": 20_000}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    made = open_store(str(tmp_path / "store"))
    create_fleet(made, RecorderConfig(**PINNED))
    return made


def record(spool: Spool, store: Store, **settings: Any) -> list[Path]:
    """Record into a spool as its recorder does, in this process."""
    given = load_config({}, {})
    config = msgspec.convert(
        {**node_settings(read_plan(store), given, spool.path, spool.member.lease), "workers": 1, **settings},
        RecorderConfig,
    )
    run(config, Listener())
    return sessions(spool.path)


def joined(store: Store, spool: Path, *more: str) -> subprocess.Popen[str]:
    """Run an agent as a process of its own."""
    command = [*COMMAND, "fleet", "join", store.url, "--spool", str(spool), "--workers", "1", *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**os.environ)
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=180)
    return process.returncode, said


def games_in(store: Store, into: Path) -> list[int]:
    """The ids of all games in the store, after each session was fetched and verified."""
    ids: list[int] = []
    for name in list_sessions(store):
        got = Session.open(fetch_session(store, name, into))
        label = RemoteName.parse(name)
        assert {int(run) >> NUMBER_BITS for run in got.runs["id"]} == {int(label.label, 16)}
        ids += [int(run) for run in got.runs["id"]]
    return ids


def test_a_fleet_is_begun_once_and_read_back(store: Store) -> None:
    plan = read_plan(store)
    assert {name: plan.settings[name] for name in PINNED} == PINNED
    with pytest.raises(NameTakenError, match="found a fleet, expected an empty store"):
        create_fleet(store, RecorderConfig(**PINNED))
    assert read_plan(store) == plan
    text = store.get("fleet.json", 10_000)
    store.put("fleet.json", text.replace(b'"seed": 77', b'"seed": 78'))
    with pytest.raises(FleetError, match="do not match their SHA-256"):
        read_plan(store)
    for broken in (text[:-10], b"{}", b""):
        store.put("fleet.json", broken)
        with pytest.raises(FleetError, match="not the plan of a fleet"):
            read_plan(store)
    store.remove("fleet.json")
    with pytest.raises(FleetError, match="found no fleet"):
        read_plan(store)
    with pytest.raises(ConfigError, match="expected a built-in player"):
        create_fleet(store, RecorderConfig(player="python:m:f"))
    with pytest.raises(ConfigError, match="columns: found 'loss', expected none: a store cannot hold"):
        create_fleet(store, RecorderConfig(columns="loss"))
    with pytest.raises(ConfigError, match="a store cannot hold columns"):
        refuse_differences(plan, load_config({"columns": "values"}, {}))


def test_concurrent_claims_get_distinct_leases(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LEASE_MAX", 40)
    got: list[int] = []

    def claim(number: int) -> None:
        with contextlib.suppress(FleetError):  # those that met others in all their tries
            got.append(claim_lease(open_store(store.url), f"{number:016x}"))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) >= 1
    assert set(got) <= set(range(1, 41))


def test_a_node_that_differs_is_rejected(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(store)
    refuse_differences(plan, load_config({"player": "random", "workers": 3}, {}))
    for name, value in (("player", "greedy"), ("seed", 78), ("storage", "rows"), ("rotate_steps", 5)):
        with pytest.raises(ConfigError, match=rf"{name}: found .*, expected .*, the fleet's value"):
            refuse_differences(plan, load_config({name: value}, {}))
    with pytest.raises(ConfigError, match=r"random with SHA-256 .*, expected 0{12}"):
        refuse_differences(msgspec.structs.replace(plan, player_sha256="0" * 64), load_config({}, {}))


def test_a_spool_has_one_agent_fleet_and_lease(store: Store, tmp_path: Path) -> None:
    plan, path = read_plan(store), tmp_path / "spool"
    with Spool(path, store, plan) as spool:
        lease = spool.member.lease
        with pytest.raises(BusyError, match=f"pid {os.getpid()} uses this spool"):
            Spool(path, store, plan)
        found = agent_at_work(path)
        os.close(found[1])
        assert found[0].pid == os.getpid()
    assert agent_at_work(path) is None, "who closed it is at work elsewhere"
    with Spool(path, store, plan) as spool:
        assert spool.member.lease == lease
    (tmp_path / "other").mkdir()
    other = open_store(str(tmp_path / "other"))
    create_fleet(other, RecorderConfig(**PINNED))
    with pytest.raises(FleetError, match=f"a spool of the fleet {plan.fleet}"):
        Spool(path, other, read_plan(other))
    (tmp_path / "used" / "20260101T000000Z_model=x").mkdir(parents=True)
    with pytest.raises(FleetError, match="which belongs to no fleet"):
        Spool(tmp_path / "used", store, plan)


def test_sessions_of_the_lease_are_shipped(store: Store, tmp_path: Path) -> None:
    plan = read_plan(store)
    with Spool(tmp_path / "spool", store, plan) as spool:
        waiting = record(spool, store, max_games=700)
        assert len(waiting) >= 2
        plan_text = store.get("fleet.json", 10_000)
        store.remove("fleet.json")
        spool.make_room(1000)
        with pytest.raises(
            DiskFullError, match=r"less than spool_max_mb = 0\. Shipping failed: .*found no fleet"
        ):
            spool.make_room(0)
        assert spool.sessions() == waiting
        store.put("fleet.json", plan_text)
        (waiting[0] / "loss.f32.npy").touch()
        with pytest.raises(FleetError, match=r"found loss\.f32\.npy, expected no columns"):
            spool.ship(waiting[0])
        (waiting[0] / "loss.f32.npy").unlink()
        shutil.copytree(waiting[0], spool.path / "20200101T000000Z_model=copied")
        for session in spool.sessions():
            spool.ship(session)
        assert not spool.sessions()
        ids = games_in(store, tmp_path / "got")
        assert sorted(set(ids)) == [(spool.member.lease << NUMBER_BITS) + game for game in range(700)]
        assert spool.member.games == len(ids)
        for wrong in ({"seed": 78}, {"lease": spool.member.lease + 1}, {"player": "greedy"}):
            record(spool, store, instance="other", max_games=5, **wrong)
            (session,) = spool.sessions()
            with pytest.raises(FleetError, match="is not shipped"):
                spool.ship(session)
            shutil.rmtree(session)
    assert games_in(store, tmp_path / "got") == ids


def test_a_missing_or_other_store_gets_nothing(store: Store, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", store, read_plan(store)) as spool:
        (session,) = record(spool, store, max_games=5)
        store.root.rename(tmp_path / "unmounted")
        with pytest.raises(TapeError):
            spool.ship(session)
        store.root.mkdir()  # the mount point
        with pytest.raises(FleetError, match="found no fleet"):
            spool.ship(session)
        create_fleet(store, RecorderConfig(**PINNED))
        with pytest.raises(FleetError, match="now holds another fleet"):
            spool.ship(session)
        assert spool.sessions() == [session]
        shutil.rmtree(store.root)
        (tmp_path / "unmounted").rename(store.root)
        spool.ship(session)
        assert not spool.sessions()


def test_the_shipper_retries_and_warns_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "RETRY_S_MAX", 0.05)
    monkeypatch.setattr(agents, "RETRY_S_MIN", 0.05)
    listener = Listener()
    with Spool(tmp_path / "spool", store, read_plan(store)) as spool:
        (store.root / "fleet.json").rename(tmp_path / "fleet.json")
        shipper = Shipper(spool, listener.event)
        shutil.copytree(_recorded(spool, store, tmp_path), spool.path / "20260101T000000Z_model=random")
        wait_until(lambda: shipper.error is not None)
        time.sleep(0.5)
        assert len(listener.messages("warning")) == 1
        assert spool.sessions()
        (tmp_path / "fleet.json").rename(store.root / "fleet.json")
        wait_until(lambda: not spool.sessions())
        wait_until(lambda: "shipping works again" in listener.messages("info"))
        shipper.close()
    assert len(list_sessions(store)) == 1


def _recorded(spool: Spool, store: Store, tmp_path: Path) -> Path:
    """A session of this spool's lease, recorded elsewhere."""
    settings = {**PINNED, "lease": spool.member.lease, "out_dir": str(tmp_path / "elsewhere"), "workers": 1}
    run(RecorderConfig(**settings, max_games=5), Listener())
    return sessions(tmp_path / "elsewhere")[0]


@pytest.fixture(params=[*KINDS, *CLOUDS] if os.environ.get("FULL_SWEEP") == "1" else KINDS[:1])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with store_url(request.param, tmp_path / "place") as url:
        made = open_store(url)
        create_fleet(made, RecorderConfig(**PINNED))
        yield made


def recorder_pid(spool: Path) -> int:
    return read_snapshot(spool, "default").process.pid


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.slow
def test_killed_agents_and_recorders_lose_nothing(place: Store, tmp_path: Path) -> None:
    spools = [tmp_path / "a", tmp_path / "b"]
    nodes = [joined(place, spool) for spool in spools]
    try:
        wait_until(lambda: len({RemoteName.parse(name)[1] for name in list_sessions(place)}) == 2)  # type: ignore[index]
        pid = recorder_pid(spools[0])
        nodes[0].kill()
        nodes[0].communicate()
        time.sleep(0.5)
        assert lives(pid), "the recorder outlives its agent"
        nodes[0] = joined(place, spools[0])
        lease = json.loads((spools[0] / ".recorder" / "agent.fleet.json").read_bytes())["lease"]

        def beats_again() -> bool:
            beat = read_beat(place, lease)
            return beat is not None and beat.pid == nodes[0].pid

        wait_until(beats_again)
        assert recorder_pid(spools[0]) == pid, "attached, and not started again"
        kill(recorder_pid(spools[1]))
        seen = len(list_sessions(place))
        wait_until(lambda: len(list_sessions(place)) > seen + 5)
        drain = [*COMMAND, "fleet", "drain", place.url]
        done = subprocess.run(
            drain, env=environment(**os.environ), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = [ended(node) for node in nodes]
    finally:
        for node, spool in zip(nodes, spools, strict=True):
            node.kill()
            with contextlib.suppress(TapeError):
                kill(recorder_pid(spool))
    assert [code for code, _ in said] == [0, 0], said
    assert "attached to the recorder" in said[0][1]
    assert "the recorder died; a new one starts" in said[1][1]
    assert not any(sessions(spool) for spool in spools)
    ids = games_in(place, tmp_path / "got")
    assert len(set(ids)) == len(ids) > 0
    assert len(Corpus.open(tmp_path / "got")) > 0
    overview = Onlooker(place, lambda _: None).look()
    assert [node.state for node in overview.nodes] == ["ended", "ended"]
    assert overview.draining
    assert overview.sessions == sum(node.stored for node in overview.nodes) == len(list_sessions(place))


def test_the_copy_of_a_spool_at_work_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "BEAT_S", 0.5)

    def agent(spool: Spool) -> Agent:
        return Agent(store, spool, None, COMMAND, Listener().event, threading.Event(), threading.Event())

    with Spool(tmp_path / "one", store, read_plan(store)) as one:
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        first = agent(one)
        first._shipper = Shipper(one, Listener().event)
        first._beat()
        beat = store.get(f"agents/{one.member.lease:06x}.json", 10_000)
        store.put(f"agents/{one.member.lease:06x}.json", beat.replace(b'"host": "', b'"host": "other-'))
        with Spool(tmp_path / "two", store, read_plan(store)) as two:
            assert agent(two).run() == "everything is shipped", "a beat that does not go on is of the dead"
            first._beat()
            monkeypatch.setattr(agents, "BEAT_S", 60)
            refused = threading.Event()

            def beat_on() -> None:
                while not refused.wait(0.1):
                    first._beat()

            beating = threading.Thread(target=beat_on)
            beating.start()
            try:
                with pytest.raises(FleetError, match="uses this spool's lease"):
                    agent(two)._refuse_second_agent()
            finally:
                refused.set()
                beating.join()
        first._shipper.close()


def test_an_agent_in_another_container_is_heard(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same host: its pid is of no process here, and it beats on."""
    with Spool(tmp_path / "spool", store, read_plan(store)) as spool:
        beats = itertools.count(2)
        beat = agents.Beat(
            lease=spool.member.lease, agent="theirs", number=1, host=platform.node(), pid=2**22,
            space="boot pid:[1]", written_at=time.time(), state="recording",
        )  # fmt: skip

        def read(*_: Any) -> agents.Beat:
            return msgspec.structs.replace(beat, number=next(beats))

        monkeypatch.setattr(agents, "read_beat", read)
        stop, leave = threading.Event(), threading.Event()
        agent = Agent(store, spool, None, COMMAND, Listener().event, stop, leave)
        with pytest.raises(FleetError, match="uses this spool's lease"):
            agent.run()
        beat = msgspec.structs.replace(beat, space=Process.mine().space)
        assert agent.run() == "everything is shipped", "of this container, and dead"
        lock = spool.path / ".recorder" / "agent.fleet.lock"
        lock.write_text(Process(os.getpid(), Process.mine().start_ticks, "boot pid:[1]").line)
        assert agent_at_work(spool.path) is None, "it cannot be held from here"
        with pytest.raises(BusyError, match="in another container or on another host, uses this spool"):
            Spool(spool.path, store, read_plan(store))


def test_silence_is_told_from_clock_skew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat(lease: int, number: int, written_at: float) -> None:
        made = agents.Beat(
            lease=lease, agent="x", number=number, host=f"node{lease}", pid=1, written_at=written_at,
            state="recording",
        )  # fmt: skip
        store.put(f"agents/{lease:06x}.json", msgspec.json.encode(made))

    now = time.time()
    beat(1, 1, now)
    beat(2, 1, now - 3600)
    beat(3, 1, now - 3600)
    beat(4, 1, now + 3600)
    beat(5, 1, now + 3600)
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def pass_time(seconds: float) -> None:
        clock[0] += seconds
        beat(1, 2, now)
        beat(2, 2, now - 3590)  # its clock is an hour late
        beat(5, 2, now + 3610)  # an hour early

    onlooker = Onlooker(store, pass_time)
    assert onlooker.look().lost == ["node3 (000003)", "node4 (000004)"]
    clock[0] += agents.LOST_S
    beat(1, 3, now)
    assert onlooker.look().lost == [f"node{lease} ({lease:06x})" for lease in (2, 3, 4, 5)]


def test_heartbeats_are_read_several_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, a thousand nodes of a distant store would look silent meanwhile."""
    for lease in range(1, 17):
        beat = agents.Beat(
            lease=lease, agent="x", number=1, host="node", pid=1, written_at=time.time(), state="ended"
        )
        store.put(f"agents/{lease:06x}.json", msgspec.json.encode(beat))
    together, read = threading.Barrier(8), agents.read_beat

    def waiting(*args: Any) -> Any:
        together.wait(60)
        return read(*args)

    monkeypatch.setattr(agents, "read_beat", waiting)
    assert [node.beat.lease for node in Onlooker(store).look().nodes] == list(range(1, 17))


def test_keys_that_are_no_heartbeats_are_named(store: Store) -> None:
    beat = agents.Beat(
        lease=1, agent="x", number=1, host="node1", pid=1, written_at=time.time(), state="ended"
    )
    store.put("agents/000001.json", msgspec.json.encode(beat))
    for name in ("zz", "0x0002", "000003"):
        store.put(f"agents/{name}.json", b"{")
    os.mkfifo(store.path("agents/000004.json"))  # blocks no reader
    seen = Onlooker(store).look()
    assert [node.beat for node in seen.nodes] == [beat]
    assert seen.unknown == [f"agents/{name}.json" for name in ("000003", "000004", "0x0002", "zz")]
    os.mkfifo(store.path("drain.json"))
    with pytest.raises(StoreError, match="not a regular file"):
        read_drain(store)


def test_what_an_agent_leaves_is_named_and_waits(store: Store, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", store, read_plan(store)) as spool:
        shutil.copytree(_recorded(spool, store, tmp_path), spool.path / "20260101T000000Z_model=random")
        store.remove("fleet.json")
        stop, leave = threading.Event(), threading.Event()
        stop.set()
        leave.set()
        with pytest.raises(FleetError, match="1 session not shipped"):
            Agent(store, spool, None, COMMAND, Listener().event, stop, leave).run()
        assert spool.sessions()
        beat = read_beat(store, spool.member.lease)
        assert beat.state == agents.FAILED
        assert "1 session not shipped" in (beat.why or "")


def test_what_waits_is_shipped_though_the_fleet_drains(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("drain.json", b'{"now": true}')
    stop = threading.Event()
    with Spool(tmp_path / "spool", store, read_plan(store)) as spool:
        session = _recorded(spool, store, tmp_path)
        for number in range(3):
            shutil.copytree(session, spool.path / f"2026010{number + 1}T000000Z_model=random")
        ship = spool.ship
        monkeypatch.setattr(spool, "ship", lambda session: (time.sleep(0.3), ship(session))[1])
        agent = Agent(store, spool, None, COMMAND, Listener().event, stop, threading.Event())
        assert agent.run() == "everything is shipped"
    assert len(list_sessions(store)) == 3


def test_a_long_log_is_moved_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_LOG_BYTES_MAX", 100)
    log = tmp_path / "default.log"
    launching.trim_log(log)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 99)
        launching.trim_log(log)
        assert log.stat().st_size == 99
        writer.write(b"b")
        launching.trim_log(log)
        writer.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "default.log.1").read_bytes() == b"a" * 99 + b"b"


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_LOG_BYTES_MAX", 1)
    theirs, log = tmp_path / "theirs", tmp_path / "default.log"
    theirs.write_text("theirs")
    log.symlink_to(theirs)
    with pytest.raises(StorageError, match="expected a regular file"):
        launching.start_agent(["true"], log)
    log.unlink()
    (tmp_path / "default.log.1").symlink_to(theirs)
    log.write_text("ours")
    launching.trim_log(log)
    assert (tmp_path / "default.log.1").read_text() == "ours"
    assert theirs.read_text() == "theirs"


@pytest.mark.slow
def test_stop_ends_a_fleet_without_its_games_in_play(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    deep = {"look_below": 16, "look_twice_below": 16, "look_spawns": 4, "look_margin": 0, "look_chance": 1e-6}
    slow = {"player": "ntuple", "player_args": deep, "storage": "tape", "seed": 1}
    create_fleet(store, RecorderConfig(**slow))  # type: ignore[arg-type]
    node = joined(store, tmp_path / "spool", "--flush-s", "0.1", "--drain-timeout-s", "600")
    try:
        wait_until((tmp_path / "spool/.recorder/default.status.json").exists)
        wait_until(lambda: read_snapshot(tmp_path / "spool", "default").status.state == "recording")
        begun = time.monotonic()
        for command in ("drain", "stop"):  # one that drains is hurried
            end = [
                *COMMAND, "fleet", command, store.url, "--timeout-s",
                "0.1" if command == "drain" else "60",
            ]  # fmt: skip
            done = subprocess.run(end, env=environment(**os.environ), capture_output=True, check=False)
        assert done.returncode == 0, done.stdout
        code, said = ended(node)
        assert time.monotonic() - begun < 60
    finally:
        node.kill()
    assert code == 0, said
    assert "the fleet is stopped: the recorder publishes and ends" in said
    assert [node.state for node in Onlooker(store).look().nodes] == [agents.ENDED]
