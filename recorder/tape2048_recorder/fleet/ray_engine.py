"""Ray as the engine of fleets and jobs: connecting to a cluster, and an actor for each node of a fleet.

An actor reserves the CPUs of its node and keeps the node's agent running. An actor's children die with the
actor, with its raylet, or with Ray. Therefore an agent is a detached process, like its recorder. The actor
watches the agent by a pidfd, and replaces it if it dies. No rows pass through Ray. If Ray ends, the recorders
continue, and the next `fleet record` attaches to the running agents.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape2048.base.settings import settings_of
from tape2048.base.text import counted
from tape2048.errors import BusyError, FleetError, MissingPackageError, StoreError, TapeError
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.stores.objects import open_store
from tape2048_recorder.fleet.agent import ENDED, RETRY_S_MAX, RETRY_S_MIN, read_beat
from tape2048_recorder.fleet.launching import end_of, start_agent
from tape2048_recorder.fleet.plan import node_settings, read_plan, refuse_differences
from tape2048_recorder.fleet.spool import AGENT_LOG, Spool, agent_at_work, read_member
from tape2048_recorder.record_options import RecorderConfig, load_config, merge_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tape2048_recorder.status.status_report import Level, Process

_LOOK_S = 0.5

_CONNECT_S = 10.0  # time limit for a machine to accept a connection

#: The placeholder for a node's name in ``--spool``.
NODE = "{node}"


class NodeActor:
    def __init__(
        self, url: str, spool: str, flags: dict[str, Any], config_path: str | None, command: Sequence[str]
    ) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        self.node = next(node["NodeName"] for node in ray.nodes() if node["NodeID"] == here)
        self._spool = Path(spool.replace(NODE, self.node))
        self._url, self._flags = url, flags
        self._config_path = None if config_path is None else Path(config_path)
        config = [] if config_path is None else ["--config", config_path]
        given = [f"{settings_of(RecorderConfig)[name].flag}={value}" for name, value in flags.items()]
        self._command = [sys.executable, *command, url, "--spool", str(self._spool), *config, *given]
        self._pidfd: int | None = None
        self._told: int | None = None  # pid of the agent that received SIGTERM; a second would hurry it

    def place(self) -> tuple[str, str, str]:
        return self.node, platform.node(), str(self._spool.resolve())

    def drain(self) -> None:
        """Ask a running agent to finish and end. The signal would kill an agent that is still starting."""
        if (found := agent_at_work(self._spool)) is None:
            return
        process, pidfd = found
        try:
            if process.pid not in {self._told, os.getpid()}:  # the actor itself holds the spool for a moment
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                self._told = process.pid
        finally:
            os.close(pidfd)

    def keep(self) -> str | None:
        """Keep an agent running until it has shipped everything and ended; return the reason for its end."""
        wait_s = RETRY_S_MIN
        while True:
            begun = time.monotonic()
            try:
                process = self._start_or_attach()
                if self._pidfd is not None:
                    poll = select.poll()
                    poll.register(self._pidfd, select.POLLIN)
                    poll.poll()
                    os.close(self._pidfd)
                    self._pidfd = None
                if process is not None and (why := self._ended(process)) is not None:
                    return why
                problem = f"the agent ended; {end_of(self._spool / LOCKS_DIRECTORY / AGENT_LOG)}"
            except StoreError as error:
                problem = str(error)
            wait_s = RETRY_S_MIN if time.monotonic() - begun > RETRY_S_MAX else min(2 * wait_s, RETRY_S_MAX)
            self._say(f"{problem}; trying again in {wait_s:g} s")
            time.sleep(wait_s)

    def _start_or_attach(self) -> Process | None:
        store = open_store(self._url)
        plan = read_plan(store)
        given = merge_sources(self._flags, os.environ, self._config_path)
        refuse_differences(plan, given)
        for is_last in (False, True):
            if (found := agent_at_work(self._spool)) is not None:
                process, self._pidfd = found
                member = read_member(self._spool)
                if member is None or member.fleet != plan.fleet:
                    raise FleetError(
                        f"the agent with pid {process.pid} uses this spool for another fleet",
                        path=self._spool,
                        hint="Choose a different --spool.",
                    )
                self._say(f"attached to the agent with pid {process.pid}")
                return process
            try:
                with Spool(self._spool, store, plan) as held:  # check the spool before an agent starts
                    settings = node_settings(plan, given, held.path, held.member.lease)
                    load_config({**self._flags, **settings}, os.environ, self._config_path)
                break
            except BusyError:  # an agent has just started, or runs on another machine
                if is_last:
                    raise
                time.sleep(2 * _LOOK_S)
        started = start_agent(self._command, self._spool / LOCKS_DIRECTORY / AGENT_LOG)
        with contextlib.suppress(ProcessLookupError):
            if started is not None:
                self._pidfd = os.pidfd_open(started.pid)
                self._say(f"started an agent with pid {started.pid}")
        return started

    def _ended(self, process: Process) -> str | None:
        member = read_member(self._spool)
        beat = None if member is None else read_beat(open_store(self._url), member.lease)
        if beat is None or beat.state != ENDED or beat.pid != process.pid:
            return None
        return beat.why or "everything is shipped"

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self.node}: {text}\n")  # Ray forwards it to the driver
        sys.stderr.flush()


def record_on_ray(
    actor_args: Sequence[Any],
    *,
    address: str | None,
    nodes: int,
    cpus: int | None,
    timeout_s: float,
    report: Callable[[Level, str], None],
    stop: threading.Event,
    leave: threading.Event,
) -> None:
    """Keep agents running on nodes of a Ray cluster until all of them have ended."""
    with connected(address or "auto", log_to_driver=True) as ray:
        group, sizes = _reserve(ray, nodes, cpus, timeout_s)
        actors = [_start_actor(ray, group, index, size, actor_args) for index, size in enumerate(sizes)]
        is_told = False
        seen: dict[tuple[str, str], str] = {}
        for node, host, path in ray.get([actor.place.remote() for actor in actors]):
            if (other := seen.setdefault((host, path), node)) != node:
                raise FleetError(
                    f"found one spool for the nodes {other} and {node} of {host}, expected two",
                    path=path,
                    hint=f"Put {NODE} into --spool: Ray's name of a node (ray start --node-name).",
                )
        going = {actor.keep.remote(): actor for actor in actors}
        first: TapeError | None = None
        while going and not leave.is_set():
            if stop.is_set():
                if not is_told:
                    report("info", "the nodes finish games, ship and end. A second signal exits at once")
                is_told = True
                for actor in going.values():  # repeatedly, because agents can start or die meanwhile
                    actor.drain.remote()
            done, _ = ray.wait(list(going), timeout=_LOOK_S)
            for task in done:
                del going[task]
                try:
                    report("info", f"a node has ended: {ray.get(task)}")
                except TapeError as error:
                    cause = getattr(error, "cause", error)
                    report("error", f"a node has ended: {cause}")
                    first = first or cause
        if first is not None:
            raise first


def _reserve(ray: Any, nodes: int, cpus: int | None, timeout_s: float) -> tuple[Any, list[int]]:
    there = sorted(
        (int(node["Resources"].get("CPU", 0)), node["NodeName"]) for node in ray.nodes() if node["Alive"]
    )[::-1]
    sizes = [cpus] * nodes if cpus is not None else [count for count, _ in there[:nodes] if count]
    if len(sizes) == nodes:
        group = ray.util.placement_group([{"CPU": size} for size in sizes], strategy="STRICT_SPREAD")
        if group.wait(timeout_s):
            return group, sizes
    found = ", ".join(f"{name} ({count} CPUs)" for count, name in there)
    raise FleetError(
        f"found {found or 'no node'}; expected {counted(nodes, 'node')} with {cpus or 'all'} CPUs free",
        hint="Lower --nodes or --cpus, or raise --timeout-s. `ray status` shows the use of the nodes.",
    )


def _start_actor(ray: Any, group: Any, index: int, cpus: int, actor_args: Sequence[Any]) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    url, spool, flags, *more = actor_args
    actor = ray.remote(NodeActor).options(
        num_cpus=cpus,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=3,  # drain() runs while keep() runs
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
    )
    return actor.remote(url, spool, {"workers": str(cpus), **flags}, *more)


@contextlib.contextmanager
def connected(address: str, *, log_to_driver: bool = False) -> Iterator[Any]:
    """Connect to a Ray cluster for the time of the context, unless this process is already connected."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "--engine ray needs the package ray", hint="pip install 'tape2048[ray]'"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where = "the cluster of RAY_ADDRESS, or of this machine" if address == "auto" else address
    try:
        where = address if address == "local" else find_cluster(address)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        ray.init(where, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=log_to_driver)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray installs its own handler
    except ray.exceptions.AuthenticationError as error:
        raise FleetError(
            f"{where}: Ray rejected this process, which has an invalid token or none",
            hint="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with the cluster's token.",
        ) from error
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        why = str(error).partition("\n")[0]
        raise FleetError(
            f"{where}: found no Ray cluster: {why}",
            hint="Run the command on a machine of the cluster, or set --address or RAY_ADDRESS to HOST:6379.",
        ) from error
    try:
        yield ray
    except ray.exceptions.RayTaskError:
        raise  # a bug, with the task's traceback
    except ray.exceptions.RayError as error:
        raise FleetError(
            f"Ray has failed: {error}", hint="Run the command again. The agents of a fleet are still running."
        ) from error
    finally:
        ray.shutdown()


def find_cluster(address: str) -> str:
    """Return a cluster's address after checking that it answers; ray.init would only time out."""
    try:
        from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
        from ray._private.services import canonicalize_bootstrap_address_or_die
        from ray._raylet import GcsClient
    except ImportError:  # another version of Ray: ray.init finds the cluster
        return address
    where: str = canonicalize_bootstrap_address_or_die(address)
    host, _, port = where.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    ensure_token_if_auth_enabled(None, create_token_if_missing=False)
    GcsClient(address=where)
    return where
