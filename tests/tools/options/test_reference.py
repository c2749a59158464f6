"""The sample file says what the settings are."""

from pathlib import Path

import pytest

from tape2048.base.settings import settings_of
from tape2048_recorder.record_options import RecorderConfig, load_config
from tape2048_recorder.retention import Retention, RetentionLimits, load_retention
from tape2048_tools.options.critic_options import main
from tape2048_tools.options.recorder_options import SAMPLE, sample_toml

CHECKOUT = Path(__file__).resolve().parents[3]


def test_the_sample_is_current_and_means_the_defaults() -> None:
    file = CHECKOUT / SAMPLE
    assert file.read_text() == sample_toml(), "run: make generate"
    assert load_config({}, {}, file).config == RecorderConfig()


def test_sampled_limits_are_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "recorder.toml"
    _, table = sample_toml().split("\n#[retention]\n")
    lines = [line[1:] for line in table.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert len(lines) == len(settings_of(RetentionLimits))
    file.write_text("\n".join(["[retention]", *lines]))
    assert load_retention({}, file) == load_retention({}, CHECKOUT / SAMPLE) == Retention()


def test_making_the_files_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "systemd").mkdir()
    main()
    assert (tmp_path / SAMPLE).read_text() == sample_toml()
