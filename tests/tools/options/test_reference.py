"""The README's table and the sample file say what the settings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tape2048.settings.fields import settings_of
from tape2048_recorder.config.loading import load_config
from tape2048_recorder.config.retention import Retention, RetentionLimits, load_retention
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_tools.options.__main__ import main
from tape2048_tools.options.errors import ERROR_MARKERS, errors_table
from tape2048_tools.options.reference import (
    MARKERS,
    RETENTION_MARKERS,
    SAMPLE,
    markdown_table,
    retention_table,
    sample_toml,
    with_table,
)

CHECKOUT = Path(__file__).resolve().parents[3]


def test_the_readme_has_the_table_as_it_is_now() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    assert with_table(readme) == readme, "run: make docs"
    assert with_table(readme, RETENTION_MARKERS, retention_table) == readme, "run: make docs"
    assert with_table(readme, ERROR_MARKERS, errors_table) == readme, "run: make docs"


def test_the_sample_is_as_it_is_now_and_means_the_defaults() -> None:
    file = CHECKOUT / SAMPLE
    assert file.read_text() == sample_toml(), "run: make docs"
    assert load_config({}, {}, file).config == RecorderConfig()


def test_the_limits_of_the_sample_are_those_that_hold_without_it(tmp_path: Path) -> None:
    file = tmp_path / "recorder.toml"
    _, table = sample_toml().split("\n#[retention]\n")
    lines = [line[1:] for line in table.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert len(lines) == len(settings_of(RetentionLimits))
    file.write_text("\n".join(["[retention]", *lines]))
    assert load_retention({}, file) == load_retention({}, CHECKOUT / SAMPLE) == Retention()


def test_the_sample_explains_every_setting_in_lines_that_fit() -> None:
    text = sample_toml()
    for setting in settings_of(RecorderConfig).values():
        assert f"\n#{setting.name} = " in text or f"\n#[{setting.name}]" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_table_is_markdown_with_a_row_for_each_setting() -> None:
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(settings_of(RecorderConfig))
    for line in lines:
        assert line.replace("\\|", "").count("|") == 6, line


def test_a_table_is_put_between_the_markers_alone() -> None:
    begin, end = MARKERS
    text = f"before\n{begin}\nold \\1\n{end}\nafter\n"
    assert with_table(text) == f"before\n{begin}\n{markdown_table()}{end}\nafter\n"
    assert with_table(with_table(text)) == with_table(text)


@pytest.mark.parametrize("text", ["", MARKERS[0], "{1}\n{0}\n", "{0}\n{1}\n{0}\n{1}\n"])
def test_markers_that_are_not_there_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected one"):
        with_table(text.format(*MARKERS))


def test_making_the_documents_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "systemd").mkdir()
    (tmp_path / "README.md").write_text("a\n{}\n{}\nb\n{}\n{}\n".format(*MARKERS, *RETENTION_MARKERS))
    main()
    assert markdown_table() in (tmp_path / "README.md").read_text()
    assert retention_table() in (tmp_path / "README.md").read_text()
    assert (tmp_path / SAMPLE).read_text() == sample_toml()
