"""The plan of a fleet, and the leases of its nodes: small files in the store, beside the sessions.

::

    fleet.json                    the plan: what every node has alike
    leases/<lease>/<claim>.json   claims of a lease; they stay for ever
    agents/<lease>.json           the last beat of the node with this lease
    drain.json                    asks every node to end, after its games or now

A claim's name is random, so no put replaces another one's. Who has put one lists the claims of its lease: of
two that claim the same lease, at least the one that lists last sees both, and who sees another's gives the
lease up. So no lease has two holders, on any store that lists what was put, and no condition is asked of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import ConfigError, FleetError, MissingPathError, NameTakenError
from tape2048_recorder.config.loading import row_bytes
from tape2048_recorder.config.schema import LEASE_MAX, RecorderConfig
from tape2048_recorder.players.batch import is_batched

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.io.objects import Store
    from tape2048_recorder.config.loading import Loaded

FLEET_JSON, DRAIN_JSON = "fleet.json", "drain.json"
AGENTS, LEASES = "agents", "leases"
_VERSION = 1

#: The settings that decide a fleet's games and sessions; a node has all others to itself.
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

#: The defaults of a fleet where they are not a recorder's: a session of 1.5 GB, and one each hour at least.
DEFAULTS = {"storage": "tape", "rotate_steps": 1_000_000_000, "rotate_s": 3600.0}

#: Sessions that a spool holds by default, if nothing is said of ``spool_max_mb``.
_SPOOL_SESSIONS = 4

#: The largest of the store's small files.
SMALL_BYTES_MAX = 1 << 20

_CLAIMS_MAX = 100


class Drain(msgspec.Struct, frozen=True):
    """The request to end, which stays until it is taken back; ``now``: without finishing games in play."""

    now: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of a fleet has alike.

    Attributes:
        fleet: random, names the fleet.
        player_sha256: of the player, weights included.
        settings: those of :data:`PINNED`.
        settings_sha256: of them, as canonical JSON.
    """

    version: int = _VERSION
    fleet: str
    created_at: float
    player_sha256: str
    settings: dict[str, Any]
    settings_sha256: str


def create_fleet(store: Store, config: RecorderConfig) -> Plan:
    """Begin a fleet in an empty place.

    Args:
        store: where its sessions are to go.
        config: what is pinned is taken from it; a random seed is drawn now.

    Raises:
        NameTakenError: there is a fleet already.
        ConfigError: the player cannot be pinned or made.
        StoreError: the store refuses or does not answer.
    """
    try:
        store.get(FLEET_JSON, SMALL_BYTES_MAX)
    except MissingPathError:
        pass
    else:
        hint = f"join it: tape2048 fleet join {store.url}"
        raise NameTakenError("there is a fleet already; nothing was changed", path=store.url, hint=hint)
    settings = {name: getattr(config, name) for name in PINNED}
    settings["model_tag"] = config.tag
    if config.seed is None:
        settings["seed"] = int.from_bytes(os.urandom(8))
    plan = Plan(
        fleet=secrets.token_hex(8),
        created_at=time.time(),
        player_sha256=sha256_of_player(config),
        settings=settings,
        settings_sha256=_sha256(settings),
    )
    store.put(FLEET_JSON, pretty_json(plan))
    return read_plan(store)


def read_plan(store: Store) -> Plan:
    """Read the plan of a fleet.

    Raises:
        FleetError: there is none, or it was edited or cut.
        StoreError: the store refuses or does not answer.
    """
    path = store.path(FLEET_JSON)
    try:
        plan = msgspec.json.decode(store.get(FLEET_JSON, SMALL_BYTES_MAX), type=Plan)
    except MissingPathError as error:
        hint = f"begin one: tape2048 fleet init {store.url}"
        raise FleetError("no fleet was begun here", path=store.url, hint=hint) from error
    except msgspec.MsgspecError as error:
        raise FleetError(f"not the plan of a fleet: {error}", path=path) from error
    if plan.version != _VERSION:
        hint = "install the version of tape2048 that began the fleet"
        raise FleetError(f"version {plan.version}; expected {_VERSION}", path=path, hint=hint)
    if _sha256(plan.settings) != plan.settings_sha256 or set(plan.settings) != set(PINNED):
        hint = "restore the file; other settings need another fleet"
        raise FleetError("its settings do not match their SHA-256: it was edited", path=path, hint=hint)
    return plan


def read_drain(store: Store) -> Drain | None:
    """Read the request to end; None if there is none.

    Raises:
        StoreError: the store refuses or does not answer.
    """
    try:
        return msgspec.json.decode(store.get(DRAIN_JSON, SMALL_BYTES_MAX), type=Drain)
    except MissingPathError:
        return None
    except msgspec.MsgspecError:
        return Drain()


def refuse_differences(plan: Plan, given: Loaded) -> None:
    """Refuse settings of a node that differ from its fleet's.

    Args:
        plan: the fleet's.
        given: what flags, environment and file of the node say.

    Raises:
        ConfigError: a setting that was given differs, or another player is installed.
    """
    for name in PINNED:
        origin, value = given.origins[name], getattr(given.config, name)
        if origin.kind != "default" and value != plan.settings[name]:
            raise ConfigError(
                f"{origin}: {name}: found {value!r}, expected {plan.settings[name]!r}, as the fleet has it",
                hint="leave it out: a node takes it from the fleet",
            )
    config = msgspec.convert(plan.settings, RecorderConfig)
    here = sha256_of_player(config)
    if here != plan.player_sha256:
        raise ConfigError(
            f"the player {config.player} is {here[:12]} here, and {plan.player_sha256[:12]} in the fleet",
            hint="install the version of tape2048, and the network, that the fleet was begun with",
        )


def node_settings(plan: Plan, given: Loaded, spool: Path, lease: int) -> dict[str, Any]:
    """Return the settings that a node's recorder has from its fleet, and from its place."""
    settings = {**plan.settings, "out_dir": str(spool), "lease": lease}
    if given.config.spool_max_mb is None:
        pinned = msgspec.convert(plan.settings, RecorderConfig)
        session_mb = pinned.rotate_steps * row_bytes(pinned) / pinned.sample_rate / 1e6
        settings["spool_max_mb"] = math.ceil(_SPOOL_SESSIONS * session_mb)
    return settings


def sha256_of_player(config: RecorderConfig) -> str:
    """Return the SHA-256 of a built-in player.

    Raises:
        ConfigError: a batched player, whose code nothing pins; or one that cannot be made.
    """
    from tape2048_recorder.players.registry import make_player, player_sha256

    if is_batched(config.player):
        raise ConfigError(
            f"found the player {config.player!r}, expected a built-in one: its SHA-256 is the fleet's",
            hint="let recorders of batched players share a seed by --lease, and copy their sessions",
        )
    return player_sha256(config.player, make_player(config.player, config.player_args))


def claim_lease(store: Store, claim: str) -> int:
    """Take a lease that nobody else has or had.

    Args:
        store: the fleet's.
        claim: random, and the claimant's alone.

    Raises:
        FleetError: after many tries every lease was taken.
        StoreError: the store refuses, does not answer, or does not list what was put.
    """
    facts = pretty_json({"host": platform.node(), "pid": os.getpid(), "claimed_at": time.time()})
    taken = {name.partition("/")[0] for name in store.names(LEASES)}
    for _ in range(_CLAIMS_MAX):
        lease = 1 + secrets.randbelow(LEASE_MAX)
        if _hex(lease) in taken:
            continue
        directory = f"{LEASES}/{_hex(lease)}"
        store.put(f"{directory}/{claim}.json", facts)
        if set(store.names(directory)) == {f"{claim}.json"}:
            return lease
        taken.add(_hex(lease))
    raise FleetError(f"no lease was free in {_CLAIMS_MAX} tries", path=store.path(LEASES))


def lease_label(lease: int) -> str:
    """Return a lease as the store's names have it."""
    return _hex(lease)


def _hex(lease: int) -> str:
    return f"{lease:06x}"


def _sha256(settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
