"""The units: what systemd itself says of them, what a configuration changes, and the files as they ship."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tape2048 import errors
from tape2048_recorder.record_options import STOP_TIMEOUT_ENV, RecorderConfig, load_config
from tape2048_tools.machine.units import FINAL, MARKER, STOP_TIMEOUT_S, ServicePaths, Unit, drop_in, units

CHECKOUT = Path(__file__).resolve().parents[3]

#: What `systemd-analyze security` may find, of 10.
EXPOSURE_MAX = 0.5

systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not here: only systemd can judge units",
)
#: A program that exists everywhere, for systemd to find.
HERE = ServicePaths(program="/bin/true")


def lines_of(unit: Unit) -> list[str]:
    return [line for line in unit.text.splitlines() if line and line[0] not in "#["]


def by_name(found: Sequence[Unit]) -> dict[str, Unit]:
    return {unit.path.name: unit for unit in found}


def write(directory: Path, found: Sequence[Unit]) -> None:
    for unit in found:
        if unit.path.parent.name in {"system", "user"}:
            (directory / unit.path.name).write_text(unit.text)
        elif unit.path.parent.name.endswith(".d"):
            (directory / unit.path.parent.name).mkdir()
            (directory / unit.path.parent.name / unit.path.name).write_text(unit.text)


def analyze(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(cwd)}  # a user's manager has one
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=cwd, capture_output=True, text=True, check=False, env=env
    )


@systemd_analyze
@pytest.mark.parametrize("user", [False, True])
def test_systemd_finds_nothing_wrong(tmp_path: Path, user: bool) -> None:
    config = RecorderConfig(out_dir="/srv/my %s", metrics_listen="127.0.0.1:9105", drain_timeout_s=600.0)
    paths = ServicePaths(program="/bin/true", user=user)
    write(tmp_path, [*units(paths), *drop_in(paths, "main", config)])
    parts = ("recorder@main.service", "prune@main.service", "prune@main.timer")
    names = [f"tape2048-{part}" for part in (*parts, "validate@main.service", "validate@main.timer")]
    for name in names:
        template = re.sub("@main", "@", name)
        assert (tmp_path / template).exists()
    done = analyze(
        "verify", *(["--user"] if user else []), *(f"./{name}" for name in names), "./tape2048.target",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


@systemd_analyze
@pytest.mark.parametrize(
    "name", ["tape2048-recorder@.service", "tape2048-prune@.service", "tape2048-validate@.service"]
)
def test_systemd_finds_it_hard_to_misuse(tmp_path: Path, name: str) -> None:
    write(tmp_path, units(HERE))
    done = analyze("security", "--offline=yes", "--no-pager", f"./{name}", cwd=tmp_path)
    match = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert match is not None, done.stdout + done.stderr
    assert float(match[1]) <= EXPOSURE_MAX, done.stdout


def test_the_checkout_has_them_as_they_are_now() -> None:
    for unit in units(ServicePaths()):
        name = "tape2048.sysusers" if unit.path.name == "tape2048.conf" else unit.path.name
        assert (CHECKOUT / "systemd" / name).read_text() == unit.text, "run: make generate"


#: What a recorder may end with, and what another start may find otherwise: room, memory, a free directory, a
#: checkpoint. Most of a player's errors are its code's, and yet may depend on the game or on the device.
CURABLE = {
    errors.StorageError, errors.DiskFullError, errors.NameTakenError, errors.TooManyFilesError,
    errors.MissingPathError, errors.BusyError, errors.RecorderError, errors.PlayerError,
}  # fmt: skip

#: What only the commands beside a recorder end with.
OF_OTHERS = {errors.NotRunningError, errors.StoreError}


def test_final_exit_codes_prevent_restarts() -> None:
    found = lines_of(by_name(units(HERE))["tape2048-recorder@.service"])
    assert "RestartPreventExitStatus=2 11 12 78" in found
    page = " ".join((CHECKOUT / "docs/how-to/service.md").read_text().split())
    *codes, last = map(str, FINAL)
    assert f"does not restart after exit codes {', '.join(codes)} and {last}" in page
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    of_recorders = {
        kind for kind in kinds if issubclass(kind, errors.StorageError | errors.RecorderError)
    } | {errors.BusyError, errors.ConfigError, errors.MissingPackageError}
    final = {kind for kind in of_recorders if kind.exit_code in FINAL}
    assert of_recorders == CURABLE | OF_OTHERS | final
    assert not final & (CURABLE | OF_OTHERS)


def test_the_stop_timeout_exceeds_the_drain() -> None:
    found = lines_of(by_name(units(HERE))["tape2048-recorder@.service"])
    assert f"TimeoutStopSec={STOP_TIMEOUT_S}s" in found
    assert f"Environment={STOP_TIMEOUT_ENV}={STOP_TIMEOUT_S}" in found
    assert load_config({}, {STOP_TIMEOUT_ENV: str(STOP_TIMEOUT_S)}).config == RecorderConfig()


def test_back_off_is_for_those_who_know_it() -> None:
    for version, has in ((252, False), (254, True)):
        text = by_name(units(ServicePaths(systemd_version=version)))["tape2048-recorder@.service"].text
        assert ("RestartSteps=" in text) is has


def test_user_units_need_no_root() -> None:
    found = by_name(units(ServicePaths(user=True, config_home="/home/a/.config")))
    assert set(found) == {
        "tape2048-recorder@.service", "tape2048-prune@.service", "tape2048-prune@.timer",
        "tape2048-validate@.service", "tape2048-validate@.timer", "tape2048.target",
    }  # fmt: skip
    service = found["tape2048-recorder@.service"]
    assert str(service.path.parent) == "/home/a/.config/systemd/user"
    assert not re.search(
        r"^(User|ProtectSystem|CapabilityBoundingSet|PrivateUsers)=", service.text, re.MULTILINE
    )
    assert "WantedBy=default.target" in found["tape2048.target"].text


def test_every_file_is_known_by_its_first_line() -> None:
    config = RecorderConfig(out_dir="/srv/x")
    for unit in [*units(HERE), *drop_in(HERE, "main", config)]:
        assert unit.text.startswith(f"{MARKER}\n")


@pytest.mark.parametrize(
    ("settings", "recorder", "prune"),
    [
        ({}, [], []),
        ({"out_dir": "data"}, [], []),
        ({"out_dir": "/srv/x"}, ["ReadWritePaths=/srv/x"], ["ReadWritePaths=/srv/x"]),
        (
            {"out_dir": "/home/a/x"},
            ["ReadWritePaths=/home/a/x", "ProtectHome=read-only"],
            ["ReadWritePaths=/home/a/x", "ProtectHome=read-only"],
        ),
        (
            {"out_dir": '/srv/50% of "my" games'},
            [r'ReadWritePaths="/srv/50%% of \"my\" games"'],
            [r'ReadWritePaths="/srv/50%% of \"my\" games"'],
        ),
        ({"player": "python:p.py:make", "model_dir": "/home/a/runs"}, ["ProtectHome=read-only"], []),
        ({"metrics_textfile": "/var/lib/collector/t.prom"}, ["ReadWritePaths=/var/lib/collector"], []),
        (
            {"metrics_listen": "127.0.0.1:1"},
            ["PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6", "IPAddressAllow=localhost"],
            [],
        ),
        (
            {"metrics_listen": "[::]:1"},
            ["PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6", "IPAddressDeny="],
            [],
        ),
        ({"drain_timeout_s": 600.0}, ["TimeoutStopSec=720s", f"Environment={STOP_TIMEOUT_ENV}=720"], []),
        ({"worker_silence_s": 300.0}, ["WatchdogSec=600s"], []),
    ],
)
def test_a_configuration_gets_what_it_needs(
    settings: dict[str, Any], recorder: list[str], prune: list[str]
) -> None:
    found = {
        unit.path.parent.name: lines_of(unit) for unit in drop_in(HERE, "main", RecorderConfig(**settings))
    }
    assert found.get("tape2048-recorder@main.service.d", []) == recorder
    assert found.get("tape2048-prune@main.service.d", []) == prune
    reading = [line for line in prune if not line.startswith("ReadWritePaths=")]
    assert found.get("tape2048-validate@main.service.d", []) == reading


def test_a_day_s_share_is_checked_on_its_day() -> None:
    """Shares change at midnight UTC: the latest start is before it."""
    found = lines_of(by_name(units(HERE))["tape2048-validate@.timer"])
    (at,) = [line for line in found if line.startswith("OnCalendar=")]
    (delay,) = [line for line in found if line.startswith("RandomizedDelaySec=")]
    hours = re.fullmatch(r"OnCalendar=\*-\*-\* (\d\d):00:00 UTC", at)
    hours_more = re.fullmatch(r"RandomizedDelaySec=(\d+)h", delay)
    assert int(hours[1]) + int(hours_more[1]) < 24
