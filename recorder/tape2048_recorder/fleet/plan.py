"""The plan of a fleet, and the leases of its nodes: small files in the store, next to the sessions.

::

    fleet.json                    the plan: the settings that all nodes share
    leases/<lease>/<claim>.json   claims of a lease; they are never removed
    agents/<lease>.json           the last heartbeat of the node with this lease
    drain.json                    a request that every node ends, after its games or now

A claim's name is random, so no write replaces another claim. A node writes its claim, then lists the claims
of the lease, and takes the lease only if it sees its own claim alone. If two nodes claim the same lease, at
least the node that lists last sees both claims. So no lease has two holders. The store needs no conditional
writes. Listings can be old, but each must show the state of the store at one moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048._version import __version__
from tape2048.base.text import pretty_json
from tape2048.errors import ConfigError, FleetError, MissingPathError, NameTakenError, reader_hint
from tape2048.players import player_name
from tape2048_recorder.players.options import is_batched, with_defaults
from tape2048_recorder.record_options import LEASE_MAX, Loaded, RecorderConfig, row_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.stores.objects import Store

FLEET_JSON, DRAIN_JSON = "fleet.json", "drain.json"
AGENTS, LEASES = "agents", "leases"
_VERSION = 1

#: The settings that determine a fleet's games and sessions. All other settings can differ between nodes.
PINNED = (
    "player",
    "player_args",
    "model_tag",
    "seed",
    "rotate_steps",
    "rotate_s",
    "storage",
    "sample_rate",
    "record_action",
)

#: The fleet's defaults that differ from a recorder's: sessions of 1.5 GB, at least one per hour.
DEFAULTS = {"storage": "tape", "rotate_steps": 1_000_000_000, "rotate_s": 3600.0}

_SPOOL_SESSIONS = 4  # sessions that fit into a spool if ``spool_max_mb`` is not set

#: The size limit of the store's small files.
SMALL_BYTES_MAX = 1 << 20

_CLAIMS_MAX = 100


class Drain(msgspec.Struct, frozen=True):
    """A request to end, which stays until it is removed; with ``now``, the games in progress are dropped."""

    now: bool = False


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    release: str = __version__  # that started the fleet
    fleet: str  # random, identifies the fleet
    created_at: float
    player_sha256: str  # of the player, weights included
    settings: dict[str, Any]  # the PINNED settings
    settings_sha256: str  # of the settings as canonical JSON

    @property
    def player_name(self) -> str:
        name = self.settings["player"]
        args = with_defaults(name, self.settings["player_args"])
        return player_name({"player": name, "player_args": args, "player_sha256": self.player_sha256})


def create_fleet(store: Store, config: RecorderConfig) -> FleetPlan:
    """Start a fleet in an empty store, with the pinned settings of ``config``; without a seed, draw one."""
    with contextlib.suppress(MissingPathError):
        store.get(FLEET_JSON, SMALL_BYTES_MAX)
        hint = f"Join it: tape2048 fleet join {store.url}"
        raise NameTakenError("found a fleet, expected an empty store", path=store.url, hint=hint)
    _refuse_unshared(config)
    seed = int.from_bytes(os.urandom(8)) if config.seed is None else config.seed
    settings = {name: getattr(config, name) for name in PINNED} | {"model_tag": config.tag, "seed": seed}
    plan = FleetPlan(
        fleet=secrets.token_hex(8),
        created_at=time.time(),
        player_sha256=sha256_of_player(config),
        settings=settings,
        settings_sha256=_sha256(settings),
    )
    store.put(FLEET_JSON, pretty_json(plan))
    return read_plan(store)


def read_plan(store: Store) -> FleetPlan:
    """Read the plan of a fleet; FleetError if it is missing, edited or truncated."""
    path = store.path(FLEET_JSON)
    try:
        plan = msgspec.json.decode(store.get(FLEET_JSON, SMALL_BYTES_MAX), type=FleetPlan)
    except MissingPathError as error:
        raise FleetError(
            "found no fleet", path=store.url, hint=f"Start a fleet: tape2048 fleet init {store.url}"
        ) from error
    except msgspec.MsgspecError as error:
        raise FleetError(f"not the plan of a fleet: {error}", path=path) from error
    if plan.version != _VERSION:
        raise FleetError(
            f"fleet version {plan.version}; expected {_VERSION}", path=path, hint=reader_hint(plan.release)
        )
    if _sha256(plan.settings) != plan.settings_sha256 or set(plan.settings) != set(PINNED):
        hint = "Restore the file. To change settings, start another fleet."
        raise FleetError("the settings were edited: they do not match their SHA-256", path=path, hint=hint)
    return plan


def read_drain(store: Store) -> Drain | None:
    try:
        return msgspec.json.decode(store.get(DRAIN_JSON, SMALL_BYTES_MAX), type=Drain)
    except MissingPathError:
        return None
    except msgspec.MsgspecError:
        return Drain()


def refuse_differences(plan: FleetPlan, given: Loaded) -> None:
    """Raise ConfigError if a node's flags, environment, file or installed player differ from its fleet's."""
    _refuse_unshared(given.config)
    for name in PINNED:
        origin, value = given.origins[name], getattr(given.config, name)
        if origin.kind != "default" and value != plan.settings[name]:
            raise ConfigError(
                f"{origin}: {name}: found {value!r}, expected {plan.settings[name]!r}, the fleet's value",
                hint=f"Remove {name}: a node takes it from the fleet.",
            )
    config = msgspec.convert(plan.settings, RecorderConfig)
    here = sha256_of_player(config)
    if here != plan.player_sha256:
        raise ConfigError(
            f"found the player {config.player} with SHA-256 {here[:12]}, expected {plan.player_sha256[:12]}, "
            "the fleet's player",
            hint="Install the version of tape2048 that started the fleet. If the player reads a network, "
            "install the same file.",
        )


def _refuse_unshared(config: RecorderConfig) -> None:
    if config.columns is not None:
        raise ConfigError(
            f"columns: found {config.columns!r}, expected none: a store cannot hold columns",
            hint="Run `tape2048 record --columns` on each node, with the same --seed and different --lease.",
        )
    if config.start_from is not None:
        raise ConfigError(
            f"start_from: found {config.start_from!r}, expected none: a fleet plays whole games",
            hint="Run `tape2048 record --from` on each node, with the same --seed and different --lease.",
        )


def node_settings(plan: FleetPlan, given: Loaded, spool: Path, lease: int) -> dict[str, Any]:
    settings = {**plan.settings, "out_dir": str(spool), "lease": lease}
    if given.config.spool_max_mb is None:
        pinned = msgspec.convert(plan.settings, RecorderConfig)
        session_mb = pinned.rotate_steps * row_bytes(pinned) / pinned.sample_rate / 1e6
        settings["spool_max_mb"] = math.ceil(_SPOOL_SESSIONS * session_mb)
    return settings


def sha256_of_player(config: RecorderConfig) -> str:
    """Return the SHA-256 of a built-in player; ConfigError for a batched player, whose code is not fixed."""
    from tape2048_recorder.players.options import make_player, player_sha256

    if is_batched(config.player):
        raise ConfigError(
            f"found the player {config.player!r}, expected a built-in player, which is the same on all nodes",
            hint="Run `tape2048 record` on each node with the same --seed and different --lease.",
        )
    return player_sha256(config.player, make_player(config.player, config.player_args))


def claim_lease(store: Store, claim: str) -> int:
    """Take a lease that no other node has ever had, by a random ``claim``; FleetError after many attempts."""
    facts = pretty_json({"host": platform.node(), "pid": os.getpid(), "claimed_at": time.time()})
    taken = {name.partition("/")[0] for name in store.names(LEASES)}
    for _ in range(_CLAIMS_MAX):
        lease = 1 + secrets.randbelow(LEASE_MAX)
        if lease_label(lease) in taken:
            continue
        directory = f"{LEASES}/{lease_label(lease)}"
        store.put(f"{directory}/{claim}.json", facts)
        if set(store.names(directory)) == {f"{claim}.json"}:
            return lease
        taken.add(lease_label(lease))
    raise FleetError(f"no lease was free in {_CLAIMS_MAX} attempts", path=store.path(LEASES))


def lease_label(lease: int) -> str:
    return f"{lease:06x}"


def _sha256(settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
