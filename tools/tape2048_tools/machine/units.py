"""The systemd units of ``tape2048 service`` and of ``systemd/`` in a checkout.

Their text is in the templates of ``machine/systemd/``. ``python -m tape2048_tools.machine.units`` in a
checkout writes ``systemd/`` (``make generate``). An instance is a configuration file:
``tape2048-recorder@main.service`` reads ``/etc/tape2048/main.toml`` and records into
``/var/lib/tape2048/main`` (its working directory, to which ``out_dir`` is relative).

All directives work with systemd 252. Directives of a newer version are added on machines that have it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import ConfigError, MissingPackageError, StartError

if TYPE_CHECKING:
    from tape2048_recorder.record_options import RecorderConfig

#: The first line of each file, by which ``service`` recognises its own files.
MARKER = "# Written by `tape2048 service install`. It may be replaced. Changes belong into `systemctl edit`."

#: ``TimeoutStopSec``: the default drain (60 s), publishing, and a margin.
STOP_TIMEOUT_S = 180

#: Exit codes that a restart cannot change; 2 is click's, for wrong usage.
FINAL = (2, *sorted(error.exit_code for error in (ConfigError, MissingPackageError, StartError)))

#: Increasing delays of restarts, and the first version of systemd that has them.
_BACK_OFF = "RestartSteps=6\nRestartMaxDelaySec=5min\n"
_BACK_OFF_SINCE = 254

#: The program in the samples of a checkout, in a virtual environment.
_SAMPLE_PROGRAM = "/opt/tape2048/bin/tape2048"


class ServicePaths(msgspec.Struct, frozen=True):
    program: str = _SAMPLE_PROGRAM  # command line of tape2048
    user: bool = False  # whether the units are for a user's manager, not the system's
    systemd_version: int = 252
    config_home: str = "~/.config"  # directory of a user's configuration

    @property
    def unit_dir(self) -> PurePosixPath:
        return PurePosixPath(self.config_home, "systemd/user") if self.user else _SYSTEM_UNITS

    @property
    def config_dir(self) -> PurePosixPath:
        return PurePosixPath(self.config_home if self.user else "/etc", "tape2048")


_SYSTEM_UNITS = PurePosixPath("/etc/systemd/system")
_SYSTEM_USERS = PurePosixPath("/etc/sysusers.d/tape2048.conf")

_UNITS = (
    "tape2048-recorder@.service",
    "tape2048-prune@.service",
    "tape2048-prune@.timer",
    "tape2048-validate@.service",
    "tape2048-validate@.timer",
    "tape2048.target",
)


class Unit(msgspec.Struct, frozen=True):
    path: PurePosixPath
    text: str


def units(paths: ServicePaths) -> list[Unit]:
    in_home = any(map(_in_home, paths.program.split()))
    hardening = _template("hardening-user.conf" if paths.user else "hardening.conf")
    values = {
        "program": paths.program,
        "config": "%E/tape2048/%i.toml",
        "stop": STOP_TIMEOUT_S,
        "directories": _template("directories.conf"),
        "hardening": hardening.format(protect_home="read-only" if in_home else "yes"),
        # Not DynamicUser=: no other user can enter the directory above its files.
        "user": "" if paths.user else "User=tape2048\nGroup=tape2048\n",
        "final": " ".join(map(str, FINAL)),
        "back_off": _BACK_OFF if paths.systemd_version >= _BACK_OFF_SINCE else "",
        "whose": "user" if paths.user else "machine",
        "wanted_by": "default.target" if paths.user else "multi-user.target",
    }
    found = [Unit(paths.unit_dir / name, _marked(_template(name).format(**values))) for name in _UNITS]
    return found if paths.user else [*found, Unit(_SYSTEM_USERS, _marked(_template("tape2048.sysusers")))]


def _template(name: str) -> str:
    return (resources.files("tape2048_tools.machine") / "systemd" / name).read_text()


def drop_in(paths: ServicePaths, instance: str, config: RecorderConfig) -> list[Unit]:
    """Return the drop-ins that an instance's configuration needs, at most one for each service."""
    recorder, prune, validate = ([], [], []) if paths.user else _permissions(config)
    if config.drain_timeout_s + 60 > STOP_TIMEOUT_S:
        stop = int(config.drain_timeout_s + 120)
        recorder += [f"TimeoutStopSec={stop}s", f"Environment=TAPE2048_STOP_TIMEOUT_S={stop}"]
    if 2 * config.worker_silence_s > 120:
        recorder.append(f"WatchdogSec={int(2 * config.worker_silence_s)}s")
    return [
        Unit(
            paths.unit_dir / f"tape2048-{service}@{instance}.service.d" / "50-configuration.conf",
            _marked("[Service]\n" + "\n".join(lines) + "\n"),
        )
        for service, lines in (("recorder", recorder), ("prune", prune), ("validate", validate))
        if lines
    ]


def _permissions(config: RecorderConfig) -> tuple[list[str], list[str], list[str]]:
    recorder, prune, validate = [], [], []
    out_dir, textfile = PurePosixPath(config.out_dir), PurePosixPath(config.metrics_textfile or "")
    if out_dir.is_absolute():
        recorder.append(f"ReadWritePaths={_word(out_dir)}")
        prune.append(f"ReadWritePaths={_word(out_dir)}")
    if _in_home(out_dir):
        prune.append("ProtectHome=read-only")
        validate.append("ProtectHome=read-only")
    if _in_home(out_dir) or _in_home(config.model_dir):
        recorder.append("ProtectHome=read-only")
    if textfile.is_absolute():
        recorder.append(f"ReadWritePaths={_word(textfile.parent)}")
    if config.metrics_listen is not None:
        host = config.metrics_listen.rpartition(":")[0]
        is_local = host in {"localhost", "[::1]"} or host.startswith("127.")
        recorder += ["PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6"]
        recorder.append("IPAddressAllow=localhost" if is_local else "IPAddressDeny=")
    return recorder, prune, validate


def _word(path: PurePosixPath) -> str:
    """Return a path as one word of a directive that takes several: systemd.syntax(7), systemd.unit(5)."""
    text = str(path).replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\" for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _in_home(path: PurePosixPath | str | None) -> bool:
    return f"{path}/".startswith(("/home/", "/root/"))


def _marked(text: str) -> str:
    return f"{MARKER}\n{text}"


def main() -> None:
    """Write the units into ``systemd/`` of the working directory, which is a checkout."""
    for unit in units(ServicePaths()):
        Path("systemd", "tape2048.sysusers" if unit.path == _SYSTEM_USERS else unit.path.name).write_text(
            unit.text
        )


if __name__ == "__main__":
    main()
