"""``tape2048 config``."""

import os
import stat
import tomllib
from pathlib import Path

import pytest

from tape2048 import errors
from tape2048.base.settings import settings_of
from tape2048_recorder.record_options import RecorderConfig, config_sha256, effective, load_config
from tape2048_tools.options.recorder_options import sample_toml

from ..conftest import Cli

SETTINGS = settings_of(RecorderConfig)


def test_show_lists_every_setting(cli: Cli) -> None:
    lines = [line.split() for line in cli("config show").out.splitlines()]
    assert lines[0] == ["setting", "value"]
    assert [line[0] for line in lines[1:]] == list(SETTINGS)
    assert ["model_tag", "ntuple"] in lines
    assert ["rotate_steps", "10_000_000"] in lines


def test_show_says_where_each_value_comes_from(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.toml").write_text('out_dir = "x"\n[player_args]\nlook = 2\n')
    monkeypatch.setenv("TAPE2048_ROTATE_S", "1h")
    out = cli("config show --config r.toml to=s3://b/g workers=2 record_action=true --origin").out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert lines["out_dir"] == ["x", "r.toml:1"]
    assert lines["player_args"] == ["look=2", "r.toml:2"]
    assert lines["rotate_s"] == ["3600", "TAPE2048_ROTATE_S"]
    assert lines["workers"] == ["2", "--workers"]
    assert lines["to"] == ["s3://b/g", "--to"]
    assert lines["record_action"] == ["true", "--record-action"]
    assert lines["seed"] == ["random", "default"]


def test_show_json_is_what_a_session_records(cli: Cli) -> None:
    document = cli(f"config show seed={2**64 - 1} --json").json
    loaded = load_config({"seed": 2**64 - 1}, {})
    assert document["config"] == effective(loaded.config)
    assert document["config_sha256"] == config_sha256(loaded.config)
    assert document["origins"]["seed"] == {"kind": "flag", "where": "--seed"}
    assert document["file"] is None


@pytest.mark.parametrize(
    "args",
    [["workers=many"], ["--config", "missing.toml"], ["max_ram_mb=1"], ["player=x:a=1,a=2"], ["worker=1"]],
)
def test_show_refuses_what_record_would_refuse(cli: Cli, args: list[str]) -> None:
    done = cli("config show", *args, expect=errors.ConfigError)
    assert done.out == ""
    assert done.err.startswith("tape2048: error: ")
    assert "\nhint: " in done.err


def test_what_is_no_value_is_refused(cli: Cli) -> None:
    for words in ("workers", "workers=1 workers=2"):
        assert "as NAME=VALUE" in cli(f"config show {words}", expect=2).err
    assert "Write workers=VALUE." in cli("config show --workers 2", expect=2).err


def test_every_value_reaches_the_configuration(cli: Cli) -> None:
    values = {
        "player": "python:m:f", "lanes": 21, "model_dir": "d", "model_files": "*.pt",
        "model_tag": "t", "out_dir": "o", "to": "s3://b/g",
        "instance": "i", "workers": 3, "seed": 4, "lease": 2,
        "rotate_steps": 5, "rotate_s": 6.0, "max_games": 7, "max_steps": 8, "max_wall_s": 9.0,
        "max_ram_mb": 1000,
        "max_disk_mb": 11, "spool_max_mb": 10, "min_free_mb": 12, "storage": "rows", "sample_rate": 13,
        "record_action": True, "block_rows": 1400,
        "flush_s": 15.0, "drain_timeout_s": 16.0, "log_interval_s": 17.0,
        "worker_silence_s": 18.0, "log_level": "warning", "log_format": "json", "metrics_listen": "h:9",
        "metrics_textfile": "m.prom",
        "start_from": "s", "start_where": "score > 5", "start_rows_where": "step > 5",
    }  # fmt: skip
    texts = {setting.name for setting in SETTINGS.values() if setting.has_text}
    assert set(values) == texts - {"columns"}, "which this player does not have"
    document = cli("config show --json", *(f"{name}={value}" for name, value in values.items())).json
    assert document["to"] == values.pop("to"), "which no session records"
    assert document["config"] == {**values, "player_args": {}, "sampling": {}}


def test_init_writes_a_sample_that_record_takes(cli: Cli, tmp_path: Path) -> None:
    done = cli("config init")
    assert "tape2048 record --config recorder.toml" in done.out
    file = tmp_path / "recorder.toml"
    assert file.read_text() == sample_toml()
    assert load_config({}, {}, file).config == RecorderConfig()
    assert stat.S_IMODE(file.stat().st_mode) & 0o444


def test_init_replaces_nothing_unless_told_to(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("workers = 1\n")
    done = cli("config init --out", file, expect=errors.NameTakenError)
    assert "--force" in done.err
    assert file.read_text() == "workers = 1\n"
    cli("config init --out", file, "--force")
    assert file.read_text() == sample_toml()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"], "nothing is left beside it"


def test_init_replaces_nothing_but_a_file(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        cli("config init --out", path, "--force", expect=errors.NameTakenError)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_may_have_any_name(cli: Cli, tmp_path: Path) -> None:
    assert "wrote [red]x.toml; " in cli("config init --out [red]x.toml").out
    assert (tmp_path / "[red]x.toml").exists()


def test_init_into_nowhere_is_an_error(cli: Cli, tmp_path: Path) -> None:
    for force in ([], ["--force"]):
        done = cli("config init --out", tmp_path / "missing/r.toml", *force, expect=errors.StorageError)
        assert str(tmp_path / "missing/r.toml") in done.err


def test_the_uncommented_sample_is_the_defaults(tmp_path: Path) -> None:
    text = "\n".join(
        line.removeprefix("#") if line[:2] not in ("# ", "#") else line for line in sample_toml().splitlines()
    )
    assert set(tomllib.loads(text)) == {*SETTINGS, "retention"}
    file = tmp_path / "r.toml"
    file.write_text(text)
    loaded = load_config({}, {}, file)
    assert loaded.config == RecorderConfig()
    assert {origin.kind for origin in loaded.origins.values()} == {"file"}


def test_the_sample_goes_to_standard_output(cli: Cli, tmp_path: Path) -> None:
    assert cli("config init --out -").out == sample_toml()
    assert not (tmp_path / "-").exists()
