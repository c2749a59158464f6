"""`tape2048 service`: files appear and go, only ours, and only where they belong."""

import json
from pathlib import Path

import pytest

from tape2048 import errors
from tape2048_tools.machine.units import MARKER

from ..conftest import Cli

UNIT = "etc/systemd/system/tape2048-recorder@.service"


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_install_and_uninstall(cli: Cli, tmp_path: Path) -> None:
    root = ("--root", str(tmp_path))
    dry = cli("service install", *root, "--instance", "main", "--dry-run")
    assert "would write" in dry.out
    assert files(tmp_path) == set()

    done = cli("service install", *root, "--instance", "main")
    assert "systemctl enable --now tape2048.target tape2048-recorder@main.service" in done.out
    units = {
        UNIT, "etc/systemd/system/tape2048-prune@.service", "etc/systemd/system/tape2048-prune@.timer",
        "etc/systemd/system/tape2048-validate@.service", "etc/systemd/system/tape2048-validate@.timer",
        "etc/systemd/system/tape2048.target", "etc/sysusers.d/tape2048.conf",
    }  # fmt: skip
    assert files(tmp_path) == units | {"etc/tape2048/main.toml"}
    assert all((tmp_path / name).read_text().startswith(MARKER) for name in units)
    assert "everything is up to date" in cli("service install", *root, "--instance", "main").out

    # The configuration is the operator's; what it needs follows it.
    (tmp_path / "etc/tape2048/main.toml").write_text('out_dir = "/srv/x"\n')
    cli("service install", *root, "--instance", "main")
    drop_in = "etc/systemd/system/tape2048-recorder@main.service.d/50-configuration.conf"
    assert "ReadWritePaths=/srv/x" in (tmp_path / drop_in).read_text()
    assert (tmp_path / "etc/tape2048/main.toml").read_text() == 'out_dir = "/srv/x"\n'

    assert "would remove" in cli("service uninstall", *root, "--dry-run").out
    assert drop_in in files(tmp_path)
    cli("service uninstall", *root)
    assert files(tmp_path) == {"etc/tape2048/main.toml"}
    assert not (tmp_path / drop_in).parent.exists()
    assert "no units are installed" in cli("service uninstall", *root).out


def test_only_own_units_are_replaced(cli: Cli, tmp_path: Path) -> None:
    unit = tmp_path / UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text(f"{MARKER}\nold\n")
    cli("service install --root", str(tmp_path))
    assert "old" not in unit.read_text()
    unit.write_text("[Service]\nExecStart=/bin/mine\n")
    (tmp_path / "etc/systemd/system/tape2048.target").unlink()
    for action in ("install", "uninstall"):
        done = cli("service", action, "--root", str(tmp_path), expect=errors.RecorderError)
        assert "file of another program. Nothing was changed" in done.err
    assert unit.read_text() == "[Service]\nExecStart=/bin/mine\n"
    assert not (tmp_path / "etc/systemd/system/tape2048.target").exists()
    assert (tmp_path / "etc/sysusers.d/tape2048.conf").exists()


def test_where_nothing_can_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file")
    done = cli("service install --root", str(tmp_path), expect=errors.RecorderError)
    assert "cannot be written" in done.err
    assert "--user" in done.err


@pytest.mark.parametrize("name", ["a b", "../x", "", "x" * 65, "a.b"])
def test_a_name_that_no_instance_can_have(cli: Cli, tmp_path: Path, name: str) -> None:
    cli("service install --root", str(tmp_path), "--instance", name, expect=errors.ConfigError)
    assert files(tmp_path) == set()


def test_a_broken_config_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "etc/tape2048").mkdir(parents=True)
    (tmp_path / "etc/tape2048/main.toml").write_text("workers = many\n")
    cli("service install --root", str(tmp_path), "--instance", "main", expect=errors.ConfigError)
    assert files(tmp_path) == {"etc/tape2048/main.toml"}


def test_print_shows_what_install_writes(cli: Cli, tmp_path: Path) -> None:
    cli("service install --root", str(tmp_path))
    document = json.loads(cli("service print --json").out)
    for file in document["files"]:
        assert (tmp_path / file["path"].lstrip("/")).read_text() == file["text"]
    shown = cli("service print --user")
    assert ".config/systemd/user/tape2048-recorder@.service" in shown.out
    assert "ExecStart=" in shown.out


def test_dashboard_and_alert_rules_ship(cli: Cli) -> None:
    assert "panels" in json.loads(cli("service print grafana").out)
    assert "- alert: Tape2048Paused\n" in cli("service print alerts").out
    cli("service print nothing", expect=2)
