"""``tape2048 fleet``: recorders on many nodes that ship their sessions into one store."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from tape2048.base.settings import NonNegative, Settings, about, from_flags, read_given, settings_of
from tape2048.base.text import counted, printable
from tape2048.stores.objects import open_store
from tape2048.stores.remote import bury_session, sweep_sessions
from tape2048_recorder.fleet.agent import FAILED, Agent, Onlooker, Overview
from tape2048_recorder.fleet.plan import (
    DEFAULTS,
    DRAIN_JSON,
    PINNED,
    Drain,
    create_fleet,
    node_settings,
    read_plan,
    refuse_differences,
)
from tape2048_recorder.fleet.ray_engine import record_on_ray
from tape2048_recorder.fleet.spool import Spool
from tape2048_recorder.record_options import merge_sources
from tape2048_recorder.retention import RetentionLimits, load_retention
from tape2048_tools.options.recorder_options import flags_of, load_from_command_line, setting_options
from tape2048_tools.sessions.retention_plan import NO_LIMIT, make_plan, store_candidates
from tape2048_tools.terminal.click_extras import PATH, exit_on_findings, json_option, new_group
from tape2048_tools.terminal.display import duration, number, size
from tape2048_tools.terminal.output import cell, complain, print_human, print_lines, print_result, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048_recorder.status.status_report import Level

WATCH_S = 5.0


class _Removal(Settings, frozen=True):
    delay_s: Annotated[
        NonNegative,
        about(
            "time from a session's tombstone to the removal of its files",
            why="readers that opened a corpus earlier have a day to finish",
        ),
    ] = 86_400


URL = click.argument("url", metavar="URL")

#: The flags of a node: settings that can differ between nodes.
_node_options = setting_options(lambda name: name not in {*PINNED, "out_dir", "lease"})


@new_group(
    "tape2048 fleet init s3://bucket/selfplay --player ntuple:look_below=4",
    "tape2048 fleet join s3://bucket/selfplay --spool /data/spool",
    "tape2048 fleet status s3://bucket/selfplay --watch",
    "tape2048 fleet drain s3://bucket/selfplay",
    "tape2048 fleet prune s3://bucket/selfplay --max-age-s 30d",
    "tape2048 fleet record s3://bucket/selfplay --engine ray --nodes 8 --spool /data/spool",
    name="fleet",
)
def command() -> None:
    """Record on many nodes into one store: a shared directory, or a bucket (s3://, gs://, az://)."""


@command.subcommand("tape2048 fleet init /nfs/selfplay --seed 7 --rotate-steps 100M")
@URL
@setting_options(lambda name: name in PINNED)
@json_option("Print one JSON document: the plan of the fleet.")
def init(*, url: str, config_path: Path | None, as_json: bool, **flags: Any) -> None:
    """Create a fleet at URL, and pin its player, seed and sessions.

    Every node plays different games of the fleet's seed. The fleet pins the settings of games and sessions:
    player, model tag, seed, rotation, storage, sampling and moves. By default, sessions are on tape and hold
    1G rows or one hour.
    """
    loaded = load_from_command_line(config_path, flags)
    defaults = {name: value for name, value in DEFAULTS.items() if loaded.origins[name].kind == "default"}
    if "://" not in url:
        Path(url).mkdir(parents=True, exist_ok=True)
    store = open_store(url)
    plan = create_fleet(store, msgspec.structs.replace(loaded.config, **defaults))
    lines = [
        f"{store.url}: fleet {plan.fleet}, {plan.player_name}, seed {plan.settings['seed']}",
        f"on each node: tape2048 fleet join {store.url} --spool DIR",
    ]
    print_result(msgspec.to_builtins(plan), lambda: lines, as_json=as_json)


@command.subcommand(
    "tape2048 fleet join /nfs/selfplay --spool /data/spool --workers 30 --spool-max-mb 20GB",
    "tape2048 fleet join /nfs/selfplay --spool /data/spool --ship-only",
)
@URL
@click.option(
    "--spool", type=PATH, required=True, help="Local directory for sessions until they are shipped."
)
@click.option("--ship-only", is_flag=True, help="Record nothing: ship the sessions in the spool, and end.")
@_node_options
def join(*, url: str, spool: Path, ship_only: bool, config_path: Path | None, **flags: Any) -> None:
    """Record on this node, and ship the sessions to URL.

    The recorder is a separate process that survives this command; run the command again to attach to it. A
    session is removed from the spool after every byte was read back from the store. While the store is
    unreachable, recording continues up to --spool-max-mb (by default four sessions), then pauses until the
    store is back.

    SIGTERM or Ctrl-C drains: the games in progress finish, and everything is shipped. A second signal exits
    at once, and the next start ships the rest. Do not pass settings that the fleet pins.
    """
    stop, leave = _on_signals()
    given = merge_sources(flags, os.environ, config_path)
    store = open_store(url)
    plan = read_plan(store)
    refuse_differences(plan, given)
    with Spool(spool, store, plan) as held:
        config = None
        if not ship_only:
            settings = node_settings(plan, given, held.path, held.member.lease)
            config = load_from_command_line(config_path, {**flags, **settings}).config
            held.make_room(config.spool_max_mb)
        tape2048 = [sys.executable, "-m", "tape2048_tools.cli"]
        reason = Agent(store, held, config, tape2048, _report, stop, leave).run()
        member = held.member
    shipped = f"{counted(member.sessions, 'session')}, {counted(member.games, 'game')}"
    print_human(printable(f"ended ({reason}): {shipped} shipped in all"))


@command.subcommand(
    "tape2048 fleet record /nfs/selfplay --engine ray --nodes 8 --spool /data/spool",
    "tape2048 fleet record s3://bucket/selfplay --engine ray --address head:6379 --nodes 8 --cpus 30 "
    "--spool /data/spool",
)
@URL
@click.option(
    "--engine",
    type=click.Choice(["ray"]),
    required=True,
    expose_value=False,
    help="Engine that provides the nodes.",
)
@click.option("--nodes", type=click.IntRange(min=1), required=True, metavar="N", help="Number of nodes.")
@click.option(
    "--spool",
    required=True,
    metavar="DIR",
    help="Local directory on each node; {node} becomes the node's name.",
)
@click.option(
    "--address", metavar="HOST:PORT", help="The cluster.  [default: RAY_ADDRESS, or this machine's]"
)
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs to reserve, and workers to run, on each node.  [default: all CPUs of the N largest nodes]",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Longest time to wait for the nodes.",
)
@_node_options
def record(
    *,
    url: str,
    nodes: int,
    spool: str,
    address: str | None,
    cpus: int | None,
    timeout_s: float,
    config_path: Path | None,
    **flags: Any,
) -> None:
    """Record on nodes of a Ray cluster, until the fleet is drained.

    Requires the extra `ray`. On each node an actor reserves the CPUs and keeps an agent running, like `fleet
    join`. The agents are not part of Ray: they continue if an actor, a raylet or this command is killed, and
    the next start attaches to them. A free node replaces a node that Ray loses. Flags apply to every node;
    --config is a file on the nodes.

    SIGTERM or Ctrl-C drains these nodes. A second signal exits and leaves them to finish. `fleet drain` and
    `fleet stop` end the whole fleet, and this command with it.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    store = open_store(url)
    refuse_differences(read_plan(store), merge_sources(given, {}))
    config = None if config_path is None else str(config_path.absolute())
    stop, leave = _on_signals()
    record_on_ray(
        [store.url, os.path.abspath(spool), given, config, ["-m", "tape2048_tools.cli", "fleet", "join"]],
        address=address,
        nodes=nodes,
        cpus=cpus,
        timeout_s=timeout_s,
        report=_report,
        stop=stop,
        leave=leave,
    )


@command.subcommand(
    "tape2048 fleet status s3://bucket/selfplay", "tape2048 fleet status /nfs/selfplay --json | jq .lost"
)
@URL
@click.option("--watch", is_flag=True, help="Update every five seconds, until Ctrl-C.")
@json_option("Print one JSON document: the plan, the nodes, the sums.")
def status(*, url: str, watch: bool, as_json: bool) -> None:
    """Show the nodes and their shipped sessions.

    A node without a heartbeat for 10 seconds is lost. Its recorder may still be running. The exit code is 1
    if a node is lost or a heartbeat cannot be read.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other: give only one")
    onlooker = Onlooker(open_store(url))
    while watch:
        print_human(*_parts(onlooker.look()))
        time.sleep(WATCH_S)
    seen = onlooker.look()
    print_result(msgspec.to_builtins(seen, str_keys=True), lambda: _parts(seen), as_json=as_json)
    exit_on_findings([*seen.lost, *seen.unknown])


@command.subcommand("tape2048 fleet drain /nfs/selfplay", "tape2048 fleet drain /nfs/selfplay --undo")
@URL
@click.option("--undo", is_flag=True, help="Let nodes join again.")
@click.option("--timeout-s", type=click.FloatRange(min=0), metavar="SECONDS", help="Longest time to wait.")
def drain(*, url: str, undo: bool, timeout_s: float | None) -> None:
    """Have every node finish, ship everything and end.

    This waits until all nodes have ended. The request stays in the store: a node that joins later ships its
    spool and ends. The exit code is 1 if a node is lost, has failed, or has not ended in time.
    """
    if undo:
        open_store(url).remove(DRAIN_JSON)
    else:
        _end(url, timeout_s, now=False)


@command.subcommand("tape2048 fleet stop /nfs/selfplay")
@URL
@click.option("--timeout-s", type=click.FloatRange(min=0), metavar="SECONDS", help="Longest time to wait.")
def stop(*, url: str, timeout_s: float | None) -> None:
    """End every node now: publish and ship the committed rows.

    The games in progress are dropped; `fleet drain` finishes them first. `fleet drain --undo` lets nodes join
    again.
    """
    _end(url, timeout_s, now=True)


def _end(url: str, timeout_s: float | None, *, now: bool) -> None:
    store = open_store(url)
    onlooker = Onlooker(store)
    store.put(DRAIN_JSON, msgspec.json.encode(Drain(now=now)))
    deadline = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
    while True:
        seen = onlooker.look()
        going = [node for node in seen.nodes if node.is_going]
        if not going or time.monotonic() >= deadline:
            break
        time.sleep(1.0)
    print_human(*_parts(seen))
    exit_on_findings([*going, *seen.lost, *(node for node in seen.nodes if node.state == FAILED)])


def _on_signals() -> tuple[threading.Event, threading.Event]:
    """Return two events: the first SIGTERM or SIGINT sets the first event, and the next sets the second."""
    stop, leave = threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        (leave if stop.is_set() else stop).set()

    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, on_signal)
    return stop, leave


def _report(level: Level, message: str) -> None:
    complain(message if level == "info" else f"{level}: {message}")


@command.subcommand(
    "tape2048 fleet prune s3://bucket/selfplay --max-age-s 30d --dry-run",
    "tape2048 fleet prune s3://bucket/selfplay --max-total-mb 10TB --delay-s 7d",
    "tape2048 fleet prune /nfs/selfplay",
)
@URL
@flags_of(RetentionLimits, lambda name: name != "keep_free_mb")
@flags_of(_Removal)
@click.option("--dry-run", is_flag=True, help="List what would be removed and why, and change nothing.")
@click.option("--yes-really", is_flag=True, help="Allow the removal of all sessions.")
@json_option("Print one JSON document: tombstones with reasons, removed sessions, what stays.")
def prune(
    *, url: str, delay_s: str | None, dry_run: bool, yes_really: bool, as_json: bool, **limits: Any
) -> None:
    """Remove sessions beyond the retention limits, the oldest first.

    A session beyond the limits gets a tombstone: listings skip it, and current readers continue. Later calls
    remove its files when the tombstone is --delay-s old. Run this command regularly from one timer, with the
    same limits or without limits. Nodes remove nothing from the store.
    """
    retention = load_retention(limits)
    given = read_given(_Removal, from_flags(_Removal, {"delay_s": delay_s}))
    delay = given["delay_s"][0] if given else settings_of(_Removal)["delay_s"].default
    store = open_store(url)
    read_plan(store)
    plan = make_plan(store_candidates(store), retention)
    if not yes_really and not dry_run:
        plan.refuse_to_empty(store.url)
    removed = [] if dry_run else sweep_sessions(store, delay)
    for going in [] if dry_run else plan.going:
        bury_session(store, going.session.name)
    document = {
        "url": store.url,
        "dry_run": dry_run,
        "tombstones": [
            {"name": session.name, "bytes": session.bytes, "rule": rule, "why": why}
            for session, rule, why in plan.going
        ],
        "removed": removed,
        "staying": plan.staying,
        "staying_bytes": plan.staying_bytes,
        "unmet": plan.unmet,
    }
    if plan.going and not as_json:
        rows = [(session.name, size(session.bytes), why) for session, _, why in plan.going]
        print_lines(("session", ">size", "why"), rows)
    verb = "would get a tombstone" if dry_run else "got a tombstone"
    line = (
        f"{store.url}: {counted(len(plan.going), 'session')} {verb}, {counted(len(removed), 'session')} "
        f"removed, {counted(plan.staying, 'session')} stay"
    )
    lines = [*(f"not met: {text}" for text in plan.unmet), *([] if retention.limited else [NO_LIMIT]), line]
    print_result(document, lambda: map(cell, lines), as_json=as_json)


def _parts(seen: Overview) -> list[RenderableType]:
    draining = ", draining" if seen.draining else ""
    head = (
        f"{seen.url}: fleet {seen.plan.fleet}{draining}, {seen.plan.player_name}, "
        f"seed {seen.plan.settings['seed']}: {counted(seen.sessions, 'session')}, "
        f"{counted(seen.rows, 'row')} ({size(seen.bytes)}), "
        f"{number(seen.steps_per_s)} steps/s, lag {duration(seen.lag_s)}"
    )
    shown = table("node", "state", ">steps/s", ">sessions", ">waiting", "why")
    for node in seen.nodes:
        shown.add_row(
            cell(f"{node.beat.host} {node.beat.lease:06x}"),
            cell(node.state if node.state != "lost" else f"lost for {duration(node.silent_s)}"),
            number(node.beat.steps_per_s),
            f"{node.stored}",
            f"{node.beat.spool_sessions} ({size(node.beat.spool_bytes)})",
            cell(node.beat.error or node.beat.why or ""),
        )
    unknown = [cell(f"{key}: found an unreadable heartbeat") for key in seen.unknown]
    return [cell(head), *([shown] if seen.nodes else []), *unknown]
