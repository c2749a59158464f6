"""The systemd units of ``tape2048 service`` and of ``systemd/`` in a checkout.

``python -m tape2048_tools.machine.units`` in a checkout writes ``systemd/`` (``make generate``); a test
compares. An instance is a configuration file: ``tape2048-recorder@main.service`` reads
``/etc/tape2048/main.toml`` and records into ``/var/lib/tape2048/main`` (its working directory, to which
``out_dir`` is relative).

Each directive works with systemd 252 and newer; directives of newer versions are added for these.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import (
    ConfigError,
    MissingPackageError,
    StartError,
)

if TYPE_CHECKING:
    from tape2048_recorder.config.schema import RecorderConfig

#: The first line of each file, by which ``service`` recognises its own files.
MARKER = "# Written by `tape2048 service install`; it may be replaced. Changes belong into `systemctl edit`."

#: ``TimeoutStopSec``: the default drain (60 s), publishing, and a margin.
STOP_TIMEOUT_S = 180

#: Exit codes that a restart cannot change; 2 is click's, for wrong usage.
FINAL = (2, *sorted(error.exit_code for error in (ConfigError, MissingPackageError, StartError)))

#: Increasing delays of restarts, and the first version of systemd that has them.
_BACK_OFF = "RestartSteps=6\nRestartMaxDelaySec=5min\n"
_BACK_OFF_SINCE = 254

#: The program in the samples of a checkout: one in a virtual environment.
_SAMPLE_PROGRAM = "/opt/tape2048/bin/tape2048"


class Layout(msgspec.Struct, frozen=True):
    """The properties of a machine on which the units depend.

    Attributes:
        program: the command line that runs ``tape2048``.
        user: whether the units are for a user's manager, not the system's.
        systemd_version: version of systemd.
        config_home: directory of a user's configuration, ``~/.config``.
    """

    program: str = _SAMPLE_PROGRAM
    user: bool = False
    systemd_version: int = 252
    config_home: str = "~/.config"

    @property
    def unit_dir(self) -> PurePosixPath:
        """The directory of units."""
        return PurePosixPath(self.config_home, "systemd/user") if self.user else _SYSTEM_UNITS

    @property
    def config_dir(self) -> PurePosixPath:
        """The directory of the instances' configurations."""
        return PurePosixPath(self.config_home if self.user else "/etc", "tape2048")


_SYSTEM_UNITS = PurePosixPath("/etc/systemd/system")
_SYSTEM_USERS = PurePosixPath("/etc/sysusers.d/tape2048.conf")


class Unit(msgspec.Struct, frozen=True):
    """A file to install: its path and its text."""

    path: PurePosixPath
    text: str


_HARDENING = """\
# Allowed: read files, write below its directories, start processes, use Unix sockets. Nothing else.
# MemoryDenyWriteExecute= has to stay off: players are compiled at run time.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
PrivateUsers=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
DevicePolicy=closed
PrivateIPC=yes
PrivateNetwork=yes
IPAddressDeny=any
RestrictAddressFamilies=AF_UNIX
ProtectSystem=strict
ProtectHome={protect_home}
ProtectProc=invisible
ProcSubset=pid
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
# This file sets priority and affinity, the service must not.
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
# Readers of the sessions join the service's group.
UMask=0027
"""

_HARDENING_USER = """\
# Restrictions that a user's manager can set without root.
# MemoryDenyWriteExecute= has to stay off: players are compiled at run time.
NoNewPrivileges=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""

_DIRECTORIES = """\
StateDirectory=tape2048/%i
StateDirectoryMode=0750
WorkingDirectory=%S/tape2048/%i
# The cache of compiled code: without it, numba would compile at each start.
CacheDirectory=tape2048
Environment=NUMBA_CACHE_DIR=%C/tape2048
"""

_RECORDER = """\
[Unit]
Description=tape2048 recorder %i
PartOf=tape2048.target
After=local-fs.target time-sync.target
# After ten failures in an hour it stays down.
StartLimitIntervalSec=1h
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} record --config {config} --instance %i
ExecReload=/bin/kill -HUP $MAINPID

# Exit codes that a restart cannot change: usage, a player that cannot start, a limit that is met before any
# game has ended, a missing package, configuration, a player that cannot be imported.
Restart=on-failure
RestartSec=10s
{back_off}RestartPreventExitStatus={final}
# Time to compile and to recover after a crash; the recorder extends it meanwhile.
TimeoutStartSec=15min
# Longer than drain_timeout_s, which the recorder checks at its start: change both lines together.
TimeoutStopSec={stop}s
Environment=TAPE2048_STOP_TIMEOUT_S={stop}
# Twice worker_silence_s: the recorder replaces silent workers; this ends a recorder that hangs.
WatchdogSec=120s
# SIGTERM goes to the recorder, which drains; SIGKILL to all remaining processes.
KillMode=mixed

# A worker that runs out of memory is replaced; the others play on.
OOMPolicy=continue
MemoryMax=75%
TasksMax=512
Nice=10
CPUWeight=50
IOWeight=50

{user}{directories}
{hardening}
[Install]
WantedBy=tape2048.target
"""

_PRUNE = """\
[Unit]
Description=Remove old sessions of the tape2048 recorder %i
After=local-fs.target

[Service]
Type=oneshot
ExecStart={program} prune --config {config}
Nice=19
IOSchedulingClass=idle
MemoryMax=1G
TasksMax=16
TimeoutStartSec=30min

{user}{directories}
{hardening}"""

_TIMER = """\
[Unit]
Description=Remove old sessions of the tape2048 recorder %i each hour
PartOf=tape2048.target

[Timer]
OnCalendar=hourly
RandomizedDelaySec=10min
Persistent=yes

[Install]
WantedBy=tape2048.target
"""

_VALIDATE = """\
[Unit]
Description=Check old sessions of the tape2048 recorder %i
After=local-fs.target

[Service]
Type=oneshot
# Each session that is older than a week, once in 30 days. With findings the unit fails.
ExecStart={program} validate --config {config} --older 7 --share 30
Nice=19
IOSchedulingClass=idle
MemoryMax=2G
TasksMax=32
TimeoutStartSec=12h

{user}{directories}
{hardening}"""

_VALIDATE_TIMER = """\
[Unit]
Description=Check a share of the old sessions of the tape2048 recorder %i each day
PartOf=tape2048.target

[Timer]
# Shares change at midnight UTC, so no delay may lead past it.
OnCalendar=*-*-* 02:00:00 UTC
RandomizedDelaySec=4h
Persistent=yes

[Install]
WantedBy=tape2048.target
"""

_TARGET = """\
[Unit]
Description=All tape2048 recorders of this {whose}

[Install]
WantedBy={wanted_by}
"""

_SYSUSERS = 'u tape2048 - "tape2048 recorder" /var/lib/tape2048\n'


def units(layout: Layout) -> list[Unit]:
    """Return the files of the service; each begins with :data:`MARKER`."""
    in_home = any(part.startswith(("/home/", "/root/")) for part in layout.program.split())
    hardening = _HARDENING_USER if layout.user else _HARDENING
    values = {
        "program": layout.program,
        "config": "%E/tape2048/%i.toml",
        "stop": STOP_TIMEOUT_S,
        "directories": _DIRECTORIES,
        "hardening": hardening.format(protect_home="read-only" if in_home else "yes"),
        # Not DynamicUser=: no other user can enter the directory above its files.
        "user": "" if layout.user else "User=tape2048\nGroup=tape2048\n",
        "final": " ".join(map(str, FINAL)),
        "back_off": _BACK_OFF if layout.systemd_version >= _BACK_OFF_SINCE else "",
        "whose": "user" if layout.user else "machine",
        "wanted_by": "default.target" if layout.user else "multi-user.target",
    }
    texts = {
        "tape2048-recorder@.service": _RECORDER,
        "tape2048-prune@.service": _PRUNE,
        "tape2048-prune@.timer": _TIMER,
        "tape2048-validate@.service": _VALIDATE,
        "tape2048-validate@.timer": _VALIDATE_TIMER,
        "tape2048.target": _TARGET,
    }
    found = [Unit(layout.unit_dir / name, _marked(text.format(**values))) for name, text in texts.items()]
    return found if layout.user else [*found, Unit(_SYSTEM_USERS, _marked(_SYSUSERS))]


def drop_in(layout: Layout, instance: str, config: RecorderConfig) -> list[Unit]:
    """Return the drop-ins that the configuration of one instance needs in addition to the common units.

    Args:
        layout: properties of the machine.
        instance: its name.
        config: its settings.

    Returns:
        At most one drop-in for the recorder, one for its pruning, and one for the checks of its sessions.
    """
    recorder, prune, validate = ([], [], []) if layout.user else _permissions(config)
    if config.drain_timeout_s + 60 > STOP_TIMEOUT_S:
        stop = int(config.drain_timeout_s + 120)
        recorder += [f"TimeoutStopSec={stop}s", f"Environment=TAPE2048_STOP_TIMEOUT_S={stop}"]
    if 2 * config.worker_silence_s > 120:
        recorder.append(f"WatchdogSec={int(2 * config.worker_silence_s)}s")
    return [
        Unit(
            layout.unit_dir / f"{service}@{instance}.service.d" / "50-configuration.conf",
            _marked("[Service]\n" + "\n".join(lines) + "\n"),
        )
        for service, lines in (
            ("tape2048-recorder", recorder),
            ("tape2048-prune", prune),
            ("tape2048-validate", validate),
        )
        if lines
    ]


def _permissions(config: RecorderConfig) -> tuple[list[str], list[str], list[str]]:
    """Return the directives by which a recorder, its pruning and its checks reach their directories."""
    recorder, prune, validate = [], [], []
    out_dir = PurePosixPath(config.out_dir)
    if out_dir.is_absolute():
        recorder.append(f"ReadWritePaths={_word(out_dir)}")
        prune.append(f"ReadWritePaths={_word(out_dir)}")
    if _in_home(out_dir):
        prune.append("ProtectHome=read-only")
        validate.append("ProtectHome=read-only")
    if _in_home(out_dir) or _in_home(config.model_dir):
        recorder.append("ProtectHome=read-only")
    textfile = PurePosixPath(config.metrics_textfile or "")
    if textfile.is_absolute():
        recorder.append(f"ReadWritePaths={_word(textfile.parent)}")
    if config.metrics_listen is not None:
        recorder += _network(config.metrics_listen)
    return recorder, prune, validate


def _word(path: PurePosixPath) -> str:
    """Return a path as one word of a directive that takes several: systemd.syntax(7), systemd.unit(5)."""
    text = str(path).replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\" for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _in_home(path: PurePosixPath | str | None) -> bool:
    """Return whether ``ProtectHome=yes`` would hide the path."""
    return f"{path}/".startswith(("/home/", "/root/"))


def _network(address: str) -> list[str]:
    """Return the directives that allow listening at an address."""
    host = address.rpartition(":")[0]
    lines = ["PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6"]
    is_local = host in {"localhost", "[::1]"} or host.startswith("127.")
    return [*lines, "IPAddressAllow=localhost" if is_local else "IPAddressDeny="]


def _marked(text: str) -> str:
    return f"{MARKER}\n{text}"


def main() -> None:
    """Write the units into ``systemd/`` of the working directory, which is a checkout."""
    for unit in units(Layout()):
        name = "tape2048.sysusers" if unit.path == _SYSTEM_USERS else unit.path.name
        Path("systemd", name).write_text(unit.text)


if __name__ == "__main__":
    main()
