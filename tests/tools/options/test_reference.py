"""The README's table and the sample file say what the settings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tape2048.settings.fields import settings_of
from tape2048_recorder.config.loading import load_config
from tape2048_recorder.config.retention import Retention, RetentionLimits, load_retention
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_tools.options.__main__ import main
from tape2048_tools.options.reference import SAMPLE, TABLES, sample_toml, settings_table, with_tables

CHECKOUT = Path(__file__).resolve().parents[3]


def test_the_readme_has_the_tables_as_they_are_now() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    assert with_tables(readme) == readme, "run: make docs"


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
    lines = settings_table().splitlines()
    assert len(lines) == 2 + len(settings_of(RecorderConfig))
    for line in lines:
        assert line.replace("\\|", "").count("|") == 6, line


def marked(*names: str) -> str:
    return "".join(f"before {name}\n<!-- {name}:begin -->\nold \\1\n<!-- {name}:end -->\n" for name in names)


def test_tables_are_put_between_the_markers_alone() -> None:
    text = with_tables(marked(*TABLES))
    assert text == "".join(
        f"before {name}\n<!-- {name}:begin -->\n{table()}<!-- {name}:end -->\n"
        for name, table in TABLES.items()
    )
    assert with_tables(text) == text


@pytest.mark.parametrize("text", ["", "{0}", "{1}\n{0}\n", "{0}\n{1}\n{0}\n{1}\n"])
def test_markers_that_are_not_there_are_an_error(text: str) -> None:
    broken = text.format("<!-- errors:begin -->", "<!-- errors:end -->")
    with pytest.raises(ValueError, match="expected one"):
        with_tables(marked("settings", "retention") + broken)


def test_making_the_documents_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "systemd").mkdir()
    (tmp_path / "README.md").write_text(marked(*TABLES))
    main()
    assert (tmp_path / "README.md").read_text() == with_tables(marked(*TABLES))
    assert (tmp_path / SAMPLE).read_text() == sample_toml()
