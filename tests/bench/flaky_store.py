"""Recorders that ship to an S3 server through a network that drops, delays and cuts (``record --to``).

::

    python -m tests.bench.flaky_store [--minutes 60] [--recorders 2] [--seed 1] [--kind moto]

A proxy stands before the server. It refuses connections, leaves them unanswered, delays them, and cuts them
in the middle of a request or of an answer; every minute or so, all connections fail for some seconds. Every
20 to 40 s, a recorder is killed (SIGKILL) and started again, as a scheduler does. At the end the faults
stop, the recorders get SIGTERM, start once more to ship what is left, and each session is fetched from the
server.

The exit code is 1 unless every game is there once and legal, with its id in the lease of its recorder;
every game that a killed recorder's journal had is among them; and no id is missing but those of games that
died with a recorder. The kinds of servers are those of ``tests.sdk.store_servers``.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tape2048.errors import TapeError
from tape2048.maintenance.validation import validate_session
from tape2048.session.layout import NUMBER_BITS, SESSION_NAME
from tape2048.session.session import Session
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import RemoteName, list_sessions
from tape2048_recorder.daemon.instance import Instance
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run
from tape2048_recorder.shipping import take_lease
from tape2048_recorder.status.status_report import read_snapshot

from ..recorder import processes
from ..recorder.checks import Listener, confirmed_in_journals
from ..recorder.processes import PATIENCE_S, environment, wait_until
from ..sdk.store_servers import fetch_session, s3_environment, s3_server
from .soak import HELD_GAMES_MAX, unexplained

SEED = 7
PLAYED: dict[str, Any] = {"player": "expectimax", "seed": SEED, "storage": "tape", "rotate_steps": 100_000}
URL = "s3://bucket/games"
FLAGS = ["--config", f"{URL}/recorder.toml", "--to", URL, "--lease", "auto", "--workers", "1"]
#: Settings that the file of the group adds.
OF_FILE: dict[str, Any] = {"min_free_mb": 0, "flush_s": 1.0, "block_rows": 40_960}

#: What becomes of a connection, by its share.
FATES = {"passed": 0.80, "refused": 0.08, "late": 0.08, "unanswered": 0.04}
#: Bytes of a connection until it is cut, on average; a session has a hundred thousand.
BYTES_MEAN = 400_000
LATE_S, UNANSWERED_S = (0.1, 3.0), 15.0
#: Times between two outages, and how long one takes.
OUTAGE_EVERY_S, OUTAGE_S = (30.0, 90.0), (2.0, 15.0)
KILL_EVERY_S = (20.0, 40.0)


class FlakyProxy:
    """Forwards connections to a server, or not; in a thread of its own. A context manager.

    Attributes:
        port: where it listens.
        calm: whether it forwards everything.
        seen: connections by what became of them, and outages.
    """

    def __init__(self, target: str, seed: int) -> None:
        self._target = urlsplit(target)
        self._draw = random.Random(seed)
        self._down = False
        self.calm = False
        self.port = 0
        self.seen: Counter[str] = Counter()
        self._tasks: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        outages = asyncio.create_task(self._outages())
        await self._end.wait()
        server.close()
        outages.cancel()
        mine = asyncio.current_task()
        while others := [task for task in asyncio.all_tasks() if task is not mine]:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def _outages(self) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(*OUTAGE_EVERY_S))
            self.seen["outage"] += not self.calm
            self._down = True
            await asyncio.sleep(self._draw.uniform(*OUTAGE_S))
            self._down = False

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fate = self._draw.choices([*FATES], [*FATES.values()])[0]
        fate = "passed" if self.calm else "refused" if self._down else fate
        task = asyncio.current_task()
        self._tasks.add(task)  # the loop forgets a task whose transports are paused
        left = [self._draw.expovariate(1 / BYTES_MEAN)]
        ends = [writer]
        try:
            if fate == "late":
                await asyncio.sleep(self._draw.uniform(*LATE_S))
            elif fate == "unanswered":
                await asyncio.sleep(UNANSWERED_S)
            if fate in {"passed", "late"}:
                upstream, server = await asyncio.open_connection(self._target.hostname, self._target.port)
                ends.append(server)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pipe(reader, server, left))
                    both.create_task(self._pipe(upstream, writer, left))
        except* OSError:
            fate = "cut" if left[0] <= 0 else fate
        finally:
            self._tasks.discard(task)
            self.seen[fate] += 1
            for end in ends:
                end.transport.abort()

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[float]
    ) -> None:
        while data := await reader.read(16_384):
            left[0] -= len(data)
            if not self.calm and (left[0] <= 0 or self._down):
                writer.write(data[: len(data) // 2])
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        writer.write_eof()


class Recorder:
    """A recorder that ships, started again whenever it has ended."""

    def __init__(self, out: Path) -> None:
        self.out, self.failed_starts = out, 0
        self._command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--out", str(out), *FLAGS]
        self._start()

    def _start(self) -> None:
        with self.out.with_suffix(".log").open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=environment(**os.environ)
            )

    def tend(self) -> None:
        """Start the recorder again if it could not start: it needs the store for its settings."""
        if self.process.poll() is not None:
            self.failed_starts += 1
            self._start()

    def kill(self) -> set[int] | None:
        """Kill the recorder if it has recorded, and start it; return the ids that its journals have."""
        with contextlib.suppress(TapeError):  # it has no status yet
            found = read_snapshot(self.out, "default")
            if found.process.pid == self.process.pid and found.status.recorded_rows:
                self.process.kill()
                self.process.wait()
                confirmed = set(confirmed_in_journals(self.out))
                self._start()
                return confirmed
        return None

    def left(self) -> list[str]:
        """The sessions that are not shipped."""
        return [path.name for path in self.out.iterdir() if SESSION_NAME.fullmatch(path.name)]

    def end(self) -> None:
        """Kill what is left."""
        self.process.kill()
        self.process.wait()


class Held(NamedTuple):
    """What was found in the store; the games in journals of the killed; kills, connections, and problems."""

    sessions: int
    games: int
    confirmed: int
    kills: Counter[str]
    network: Counter[str]
    problems: list[str]


def disturb(recorders: list[Recorder], draw: random.Random, end: float, kills: Counter[str]) -> set[int]:
    """Kill recorders until a time; return the committed games of the killed."""
    confirmed = set[int]()
    next_kill = time.monotonic() + draw.uniform(*KILL_EVERY_S)
    while time.monotonic() < end:
        time.sleep(1)
        for one in recorders:
            one.tend()
        if time.monotonic() >= next_kill and (games := draw.choice(recorders).kill()) is not None:
            confirmed |= games
            kills["recorder"] += 1
            next_kill = time.monotonic() + draw.uniform(*KILL_EVERY_S)
    return confirmed


def drain(recorders: list[Recorder], seconds: float) -> list[str]:
    """End the recorders, and start them again for a moment until nothing waits; return problems."""
    deadline = time.monotonic() + seconds
    for one in recorders:
        while True:
            one.process.terminate()
            one.process.wait(timeout=max(deadline - time.monotonic(), 1))
            if one.process.returncode == 0 and not one.left():
                break
            if time.monotonic() >= deadline:
                return [f"{one.out.name} ended with {one.process.returncode}, unshipped: {one.left()}"]
            one.tend()
            wait_until(lambda one=one: not one.left() or one.process.poll() is not None)
    return []


def examine(
    store: Store, recorders: list[Recorder], confirmed: set[int], into: Path
) -> tuple[int, set[int], list[str]]:
    """Fetch and check all sessions; return their number, the ids of their games, and problems."""
    ids, problems, names = set[int](), list[str](), list_sessions(store)
    for name in names:
        path = fetch_session(store, name, into)
        report = validate_session(path)
        problems += [f"{name}: {finding.message}" for finding in report.findings]
        found = set(Session.open(path).runs["run_id"].tolist())
        parsed = RemoteName.parse(name)
        assert parsed is not None
        if {run >> NUMBER_BITS for run in found} != {int(parsed.label, 16)}:
            problems.append(f"{name}: games of another lease")
        problems += [f"{name}: {len(again)} games come twice"] if (again := found & ids) else []
        ids |= found
        shutil.rmtree(path)
    if not ids:
        problems.append("no game was recorded")
    if lost := confirmed - ids:
        problems.append(f"{len(lost)} committed games are lost")
    for one in recorders:
        lease = take_lease(URL, one.out, "default")
        with contextlib.closing(Instance(one.out, "default")) as instance:
            state = instance.load_state(SEED, lease)
        problems += unexplained({run for run in ids if run >> NUMBER_BITS == lease}, state, HELD_GAMES_MAX)
    return len(names), ids, problems


def hold(directory: Path, *, seconds: float, recorders: int = 2, seed: int = 1, kind: str = "moto") -> Held:
    """Record in faults for so many seconds; return what was found."""
    draw, kills = random.Random(seed), Counter[str]()
    first = RecorderConfig(**PLAYED, out_dir=str(directory / "first"), workers=1, max_games=1)
    run(first, Listener())  # compiles what all recorders load
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(s3_server(kind, directory / "served"))
        proxy = stack.enter_context(FlakyProxy(address, seed))
        with s3_environment(address):
            text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (PLAYED | OF_FILE).items())
            open_store(URL).put("recorder.toml", text.encode())
        with s3_environment(f"http://127.0.0.1:{proxy.port}"):
            members = [Recorder(directory / f"out-{i}") for i in range(recorders)]
            for one in members:
                stack.callback(one.end)
            confirmed = disturb(members, draw, time.monotonic() + seconds, kills)
            proxy.calm = True
            problems = drain(members, 5 * PATIENCE_S)
        with s3_environment(address):
            sessions, ids, more = examine(open_store(URL), members, confirmed, directory / "got")
        kills["starts that failed"] = sum(one.failed_starts for one in members)
        return Held(sessions, len(ids), len(confirmed), kills, proxy.seen, problems + more)


def main() -> int:
    """Run, print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--recorders", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("moto", "rclone"), default="moto")
    args = parser.parse_args()
    processes.PATIENCE_S = 900.0  # a machine with other work may take minutes for a start
    directory = Path(tempfile.mkdtemp(prefix="flaky_store"))
    try:
        held = hold(
            directory, seconds=60 * args.minutes, recorders=args.recorders, seed=args.seed, kind=args.kind
        )
    finally:
        shutil.rmtree(directory)
    print(f"{args.minutes:g} minutes; connections: {dict(held.network)}; kills: {dict(held.kills)}")
    print(
        f"{held.sessions:,} sessions, {held.games:,} games; {held.confirmed:,} were in journals of the killed"
    )
    print("\n".join(held.problems) or "no problem")
    return 1 if held.problems else 0


if __name__ == "__main__":
    sys.exit(main())
