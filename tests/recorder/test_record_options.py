"""The recorder's configuration: what is taken, from where, and what is refused in which words."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tape2048.base.settings import CONFIG_BYTES_MAX, Origin, read_toml, settings_of
from tape2048.errors import ConfigError
from tape2048.session.layout import ACTION_STEP_DTYPE, SESSION_NAME, step_dtype
from tape2048.session.tape_layout import ANCHOR_DTYPE, ANCHOR_ROWS, TAPE_DTYPE
from tape2048_recorder import record_options as loading
from tape2048_recorder.record_options import (
    LEASE_MAX,
    STOP_TIMEOUT_ENV,
    RecorderConfig,
    check_loaded_player,
    config_sha256,
    effective,
    load_config,
    row_bytes,
    split_player,
)
from tape2048_recorder.retention import load_retention

SETTINGS = settings_of(RecorderConfig)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refused(
    flags: dict[str, Any] | None = None, env: dict[str, str] | None = None, file: Path | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(flags or {}, env or {}, file)
    assert caught.value.hint, "an error says what to do"
    return caught.value


def test_defaults_have_origins() -> None:
    loaded = load_config({}, {})
    assert loaded.config == RecorderConfig()
    assert set(loaded.origins) == set(SETTINGS)
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}
    assert loaded.path is None


def test_every_default_would_be_taken_if_it_were_given() -> None:
    for setting in SETTINGS.values():
        if setting.has_text:
            text = setting.none if setting.default is None else setting.show(setting.default)
            loaded = load_config({setting.name: text}, {})
            assert getattr(loaded.config, setting.name) == setting.default, setting.name


def test_precedence_of_sources(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", "workers = 1\nrotate_steps = 11\nmax_games = 111\n")
    env = {"TAPE2048_WORKERS": "2", "TAPE2048_ROTATE_STEPS": "22"}
    loaded = load_config({"workers": "3"}, env, file)
    assert (loaded.config.workers, loaded.config.rotate_steps, loaded.config.max_games) == (3, 22, 111)
    assert loaded.config.sample_rate == 1
    assert loaded.origins["workers"] == Origin("flag", "--workers")
    assert loaded.origins["rotate_steps"] == Origin("env", "TAPE2048_ROTATE_STEPS")
    assert loaded.origins["max_games"] == Origin("file", f"{file}:3")
    assert loaded.origins["sample_rate"] == Origin("default")


def test_off_takes_back_what_a_weaker_source_set(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", "max_games = 5\nseed = 7\nmodel_tag = 'a'\n")
    loaded = load_config({"max_games": "off", "model_tag": ""}, {"TAPE2048_SEED": "random"}, file)
    assert (loaded.config.max_games, loaded.config.seed, loaded.config.model_tag) == (None, None, None)


def test_the_file_is_named_by_flag_or_variable(tmp_path: Path) -> None:
    by_env = write(tmp_path / "env.toml", "workers = 1\n")
    by_flag = write(tmp_path / "flag.toml", "workers = 2\n")
    env = {"TAPE2048_CONFIG": str(by_env)}
    assert load_config({}, env).path == str(by_env)
    assert load_config({}, env).config.workers == 1
    assert load_config({}, env, by_flag).config.workers == 2


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rotate_steps", "10_000_000", 10_000_000), ("rotate_steps", "1e6", 1_000_000),
        ("rotate_steps", "2.5e3", 2_500), ("rotate_steps", "10M", 10_000_000),
        ("rotate_steps", " 5k ", 5_000), ("max_games", "0.001M", 1_000), ("max_games", "1", 1),
        ("seed", "0xFFFFFFFFFFFFFFFF", 2**64 - 1), ("seed", str(2**64 - 1), 2**64 - 1), ("seed", "0", 0),
        ("max_disk_mb", "1.5TB", 1_500_000), ("max_disk_mb", "2 GB", 2_000), ("max_disk_mb", "1", 1),
        ("max_ram_mb", "4000MB", 4_000), ("max_wall_s", "90", 90.0), ("max_wall_s", "1.5min", 90.0),
        ("rotate_s", "2h", 7_200.0), ("rotate_s", "1d", 86_400.0), ("flush_s", "0.25", 0.25),
        ("drain_timeout_s", "0", 0.0), ("record_action", "Yes", True), ("record_action", "0", False),
        ("out_dir", "/data/self play/ü", "/data/self play/ü"), ("model_tag", "net-3.1+b", "net-3.1+b"),
        ("metrics_listen", "localhost:9105", "localhost:9105"), ("metrics_listen", "off", None),
        ("metrics_listen", "127.0.0.1:1", "127.0.0.1:1"), ("metrics_listen", "[::1]:9105", "[::1]:9105"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", ["flag", "env"])
def test_text_that_is_taken(source: str, name: str, text: str, value: object) -> None:
    given_ = ({name: text}, {}) if source == "flag" else ({}, {SETTINGS[name].env: text})
    found = getattr(load_config(*given_).config, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("workers", "many"), ("workers", "-1"), ("workers", "1.5"), ("workers", ""), ("workers", "1025"),
        ("workers", "2k"),  # a suffix belongs to counts, seconds and megabytes
        ("seed", "-1"), ("seed", str(2**64)), ("seed", "0x1_0000_0000_0000_0000"), ("rotate_steps", "0"),
        ("rotate_steps", "1e-3"), ("rotate_steps", "9" * 5000), ("rotate_steps", "10m"),
        ("rotate_steps", "1e999999999"),  # would be a number of a billion digits
        ("rotate_steps", "off"), ("rotate_steps", "\u06612"), ("max_disk_mb", "1MiB"),
        ("max_disk_mb", "0.5MB"),
        ("rotate_steps", "\u0661\u0662"),  # digits elsewhere, and int() would take them
        ("max_wall_s", "nan"), ("max_wall_s", "inf"), ("max_wall_s", "0"), ("flush_s", "off"),
        ("record_action", "maybe"), ("record_action", ""), ("sample_rate", "0"), ("block_rows", "1023"),
        ("model_tag", "-x"), ("model_tag", "a/b"), ("model_tag", "a b"), ("model_tag", "x" * 101),
        ("model_tag", "tag\n"), ("instance", ""), ("instance", "a.b"), ("out_dir", ""),
        ("out_dir", "~/selfplay"), ("out_dir", "a\0b"), ("player", ""), ("player", "two words"),
        ("metrics_listen", "9105"), ("metrics_listen", ":9105"), ("metrics_listen", "localhost"),
        *(("metrics_listen", text) for text in ("::1:9105", "a b:1", "localhost:x", "host:123456")),
        *(("lease", text) for text in ("-1", str(LEASE_MAX + 1), "1.5", "1k", "off")),
    ],
)  # fmt: skip
def test_rejected_text_names_found_and_expected(name: str, text: str) -> None:
    by_flag = refused({name: text})
    assert SETTINGS[name].flag in str(by_flag)
    assert f"found {text!r}, expected {SETTINGS[name].expected}" in str(by_flag)
    by_env = refused(env={SETTINGS[name].env: text})
    assert str(by_env).startswith(f"{SETTINGS[name].env}: ")


@pytest.mark.parametrize("name", ["out_dir", "model_dir", "metrics_textfile"])
def test_bytes_that_are_no_text_are_refused(name: str) -> None:
    raw = os.fsdecode(b"a\xff.prom")  # as the command line and the environment give them
    by_flag, by_env = refused({name: raw}), refused(env={SETTINGS[name].env: raw})
    assert f"{SETTINGS[name].flag or name}: found 'a\\udcff.prom', expected UTF-8 text" in str(by_flag)
    assert f"{SETTINGS[name].env}: found 'a\\udcff.prom', expected UTF-8 text" in str(by_env)


@pytest.mark.parametrize(
    "line",
    [
        'workers = "2"', "workers = true", "workers = 1.5", "workers = [1]", "workers = {}",
        "workers = 1979-05-27", "rotate_steps = 1e300", "rotate_steps = inf", 'rotate_steps = "10M"',
        "max_wall_s = nan", "record_action = 1", 'record_action = "true"', "player = 3", "model_tag = true",
        "seed = 18446744073709551616", "player_args = 3", "player_args = {depth = [1, 2]}",
        "player_args = {depth = inf}", "player_args = {a = {b = 1}}", f"rotate_steps = {10**21}",
        f"rotate_steps = {10**400}", f"flush_s = {10**400}", f"flush_s = -{10**400}",
    ],
)  # fmt: skip
def test_a_file_is_typed_and_an_error_names_the_line(tmp_path: Path, line: str) -> None:
    file = write(tmp_path / "r.toml", f"# a comment\n\n{line}\n")
    error = refused(file=file)
    assert str(error).startswith(f"{file}:3: {line.split(maxsplit=1)[0]}: found ")
    assert "expected" in str(error)


@pytest.mark.parametrize(
    ("name", "units"),
    [("max_wall_s", "s, min, h or d"), ("max_disk_mb", "MB, GB or TB"), ("rotate_steps", "k, M or G")],
)
def test_a_number_that_is_none_is_told_its_units(tmp_path: Path, name: str, units: str) -> None:
    for found in (refused({name: "5x"}), refused(env={SETTINGS[name].env: "5x"})):
        assert f"a unit may follow the number: {units}; " in str(found.hint)
    assert "unit" not in str(refused({"workers": "5x"}).hint)
    assert "unit" not in str(refused(file=write(tmp_path / "r.toml", f'{name} = "5x"')).hint)


def test_exact_floats_are_whole_numbers(tmp_path: Path) -> None:
    loaded = load_config({}, {}, write(tmp_path / "r.toml", "rotate_steps = 1e7\nflush_s = 5\n"))
    assert loaded.config.rotate_steps == 10_000_000
    assert type(loaded.config.rotate_steps) is int
    assert type(loaded.config.flush_s) is float
    assert "found 9007199254740994.0" in str(
        refused(file=write(tmp_path / "s.toml", "seed = 9007199254740994.0"))
    )


@given(st.sampled_from([name for name in SETTINGS if name != "player"]), st.text())
def test_any_text_is_taken_or_refused_by_name(name: str, text: str) -> None:
    try:
        value = getattr(load_config({name: text}, {}).config, name)
    except ConfigError as error:
        assert str(error).startswith(f"{SETTINGS[name].flag or name}: found ")  # noqa: PT017 - either will do
    else:
        assert load_config({name: SETTINGS[name].show(value) if value is not None else None}, {})


@pytest.mark.parametrize(
    ("found", "nearest"),
    [("rotate_step", "rotate_steps"), ("Workers", "workers"), ("max-games", "max_games"), ("zzz", "")],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, found: str, nearest: str) -> None:
    file = write(tmp_path / "r.toml", f"workers = 1\n{found} = 1\n")
    error = refused(file=file)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{file}:2: found {found!r}")
    assert f"The nearest is {nearest!r}" in str(error) or not nearest


def test_a_setting_in_another_table_names_its_table(tmp_path: Path) -> None:
    outside = write(tmp_path / "a.toml", "workers = 1\nmax_total_mb = 5\n")
    error = refused(file=outside)
    assert str(error) == f"{outside}:2: found 'max_total_mb'; expected it below [retention]"
    with pytest.raises(ConfigError, match=r"a\.toml:2: found 'max_total_mb'; expected it below"):
        load_retention({}, outside)  # else, `prune` would remove nothing
    for table in ("[retention]", "[retention.tags.greedy]"):
        inside = write(tmp_path / "b.toml", f"{table}\nmax_total_mb = 5\nrotate_s = 60\n")
        assert "found 'rotate_s'; expected it above the first [table]" in str(refused(file=inside))
    error = refused(env={"TAPE2048_MAX_TOTAL_MB": "5"})
    assert str(error) == "found 'TAPE2048_MAX_TOTAL_MB'; expected it in the file only"
    assert error.hint == "Write it below [retention] in the file of --config."


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfworkers = 7\n[retention]\nkeep_last = 2\n")
    assert load_config({}, {}, tmp_path / "a.toml").config.workers == 7
    assert load_retention({}, tmp_path / "a.toml").general.keep_last == 2


def test_a_removed_setting_is_explained(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", "workers = 1\ninference = 2\n")
    error = refused(file=file)
    said = "'inference' was removed: every worker calls its batched player itself"
    assert (str(error), error.hint) == (f"{file}:2: {said}", "Delete the line.")
    error = refused(env={"TAPE2048_INFERENCE": "2"})
    assert (str(error), error.hint) == (
        said.replace("inference", "TAPE2048_INFERENCE"),
        "Leave TAPE2048_INFERENCE out.",
    )


def test_an_unknown_flag_or_variable_is_rejected() -> None:
    assert isinstance(refused({"worker": 2}), ConfigError)
    error = refused(env={"TAPE2048_ROTATE_STEP": "5", "PATH": "/bin"})
    assert isinstance(error, ConfigError)
    assert "'TAPE2048_ROTATE_STEP'" in str(error)
    assert "'TAPE2048_ROTATE_STEPS'" in str(error)


def test_lines_are_found_behind_whatever_toml_allows(tmp_path: Path) -> None:
    text = (
        '# workers = 1\r\nout_dir = """\\\r\n  instance = 3\r\n  workers = 4"""\r\n'
        '"workers" = 2 # rotate_steps = 1\r\n\r\nseed\t= 3\r\n'
        "rotate_s = [\r\n  [1],\r\n  [2]]\r\nflush_s = 1 # \u2028 does not end a line\r\nmax_s = 2\r\n"
        "[ player_args ]\r\n# here\r\ndepth = 2\r\nworkers = [\r\n  [1],\r\n]\r\n"
    )
    values, lines = read_toml(write(tmp_path / "r.toml", text))
    assert set(values) == set(lines)
    assert lines == {
        "out_dir": 2, "workers": 5, "seed": 7, "rotate_s": 8, "flush_s": 11, "max_s": 12, "player_args": 13,
    }  # fmt: skip


@pytest.mark.parametrize("text", [f"rotate_steps = 1{'0' * 5000}", f"player_args = {'[' * 5000}{']' * 5000}"])
def test_toml_that_its_reader_gives_up_is_refused(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "r.toml", text)
    assert "found TOML that cannot be read" in str(refused(file=file))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("workers = \n", "1"), ("a = 1\nworkers 2\n", "2"), ("workers = 1\nworkers = 2", "2"),
        ("[player_args\n", "1"), ('x = """\n\n', "2"), ("flag = True\n", "1"),
    ],
)  # fmt: skip
def test_malformed_toml_names_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    file = write(tmp_path / "r.toml", text)
    error = refused(file=file)
    assert str(error).startswith(f"{file}:{where}: found malformed TOML")
    assert f"(line {where}, column " in str(error)


def test_an_unreadable_file_is_a_config_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert str(missing) in str(refused(file=missing))
    assert str(missing) in str(refused(env={"TAPE2048_CONFIG": str(missing)}))
    assert "directory" in str(refused(file=tmp_path)).lower()
    assert "TAPE2048_CONFIG" in str(refused(env={"TAPE2048_CONFIG": ""}))


def test_a_file_that_is_not_text_names_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_bytes(b'out_dir = "\xff"\n')
    error = refused(file=file)
    assert error.offset == 11
    assert "0xff" in str(error)


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    assert f"{CONFIG_BYTES_MAX:,}" in str(refused(file=Path("/dev/zero")))


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("expectimax", "expectimax", None),
        ("expectimax:depth=2", "expectimax", {"depth": 2}),
        (
            "ntuple:weights=/a/b:c.npz,epsilon=1e-3,folded=true",
            "ntuple",
            {"weights": "/a/b:c.npz", "epsilon": 0.001, "folded": True},
        ),
        ("python:my.module:factory", "python:my.module:factory", None),
        ("python:my.module:factory:lanes=512", "python:my.module:factory", {"lanes": 512}),
        ("x:a=", "x", {"a": ""}),
        ("x:a=b=c", "x", {"a": "b=c"}),
        ("ntuple:mix=16,look=4", "ntuple", {"mix": "16", "look": "4"}),
        ("ntuple:weights=007", "ntuple", {"weights": "007"}),
        ("x:a=-1,b=0x10,c=1.0", "x", {"a": -1, "b": 16, "c": 1.0}),
    ],
)
def test_a_player_may_carry_its_parameters(text: str, name: str, args: dict[str, object] | None) -> None:
    assert split_player(text) == (name, args)
    loaded = load_config({"player": text}, {})
    assert (loaded.config.player, loaded.config.player_args) == (name, args or {})
    types = {key: type(value) for key, value in loaded.config.player_args.items()}
    assert types == {key: type(value) for key, value in (args or {}).items()}


@pytest.mark.parametrize("text", ["x:a=1,b", "x:a=1,a=2", "x:a=1,", "x:a=1,2=3"])
def test_parameters_that_are_none_are_refused(text: str) -> None:
    assert f"--player: found {text!r}" in str(refused({"player": text}))


def test_player_and_parameters_are_one_choice(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", 'player = "expectimax"\n[player_args]\ndepth = 3\n')
    assert load_config({}, {}, file).config.player_args == {"depth": 3}
    loaded = load_config({"player": "greedy"}, {}, file)
    assert loaded.config.player_args == {}, "another player must not get the file's parameters"
    assert loaded.origins["player_args"] == Origin("flag", "--player")
    assert load_config({}, {"TAPE2048_PLAYER": "expectimax:depth=1"}, file).config.player_args == {"depth": 1}


def test_parameters_in_two_places_are_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", 'player = "x:depth=1"\n[player_args]\ndepth = 3\n')
    error = refused(file=file)
    assert str(error).startswith(f"{file}:1: player: ")
    assert f"{file}:2" in str(error)


@pytest.mark.parametrize(
    ("player", "args", "line"),
    [("greedyy", "depth = 2", 1), ("expectimax", "depht = 2", 2), ("expectimax", "depth = 2", None)],
)
def test_a_wrong_player_is_located(tmp_path: Path, player: str, args: str, line: int | None) -> None:
    file = write(tmp_path / "r.toml", f'player = "{player}"\n[player_args]\n{args}\n')
    text = f"{player}:{args.replace(' ', '')}"
    sources: list[tuple[dict[str, object], dict[str, str], Path | None, str]] = [
        ({}, {}, file, f"{file}:{line}: "),
        ({"player": text}, {}, None, "--player: "),
        ({}, {"TAPE2048_PLAYER": text}, None, "TAPE2048_PLAYER: "),
    ]
    for flags, env, path, where in sources:
        loaded = load_config(flags, env, path)
        if line is None:
            check_loaded_player(loaded)
            continue
        with pytest.raises(ConfigError) as caught:
            check_loaded_player(loaded)
        assert str(caught.value).startswith(where)
        assert caught.value.hint


LANES = {"player": "python:players.py:make", "workers": "8"}
TAPE = {"storage": "tape", "rotate_steps": "1G"}
COLUMNS = {"columns": "values,loss"}


@pytest.mark.parametrize(
    ("flags", "changes", "said"),
    [
        ({"workers": "8", "max_ram_mb": "18"}, {"max_ram_mb": "19"}, "found 18, expected at least 19"),
        (
            {"workers": "1", "block_rows": "1M", "max_ram_mb": "8"},
            {"max_ram_mb": "9"},
            "found 8, expected at least 9",
        ),
        ({**LANES, "max_ram_mb": "60"}, {"max_ram_mb": "61"}, "found 60, expected at least 61"),
        ({**LANES, "storage": "tape", "max_ram_mb": "8"}, {"max_ram_mb": "9"}, "at least 9"),
        ({"instance": "readers"}, {"instance": "reader"}, "--instance: found 'readers', expected another"),
        ({"player": "greedy", "model_dir": "models"}, LANES, "--model-dir: found with player = 'greedy'"),
        ({"lease": 1}, {"seed": "1", "lease": str(LEASE_MAX)}, "found 1 without a seed, expected 0"),
        ({**TAPE, "spool_max_mb": "2999MB"}, {"spool_max_mb": "3GB"}, "expected at least 3000: two sessions"),
        ({"spool_max_mb": 1}, {"sample_rate": 1000}, "--spool-max-mb: found 1, expected at least 560"),
        (
            {**COLUMNS, "spool_max_mb": 1},
            {"sample_rate": 1000},
            "--spool-max-mb: found 1, expected at least 960",
        ),
        ({**COLUMNS, "workers": "1", "max_ram_mb": "7"}, {"max_ram_mb": "8"}, "found 7, expected at least 8"),
        *(
            (
                {**COLUMNS, "player": player},
                {"columns": ""},
                f"player = '{player}', which computes no values of moves; expected the player expectimax",
            )
            for player in ("random", "greedy", "critic", "python:players.py:make", "python:onnx:make")
        ),
    ],
)
def test_conflicting_settings(flags: dict[str, object], changes: dict[str, object], said: str) -> None:
    """Some settings contradict each other; the changes resolve the conflict."""
    assert said in str(refused(flags))
    load_config({**flags, **changes}, {})


@pytest.mark.parametrize("text", ["luck", "values,best", "values;loss", "Values"])
def test_other_columns_are_refused(text: str) -> None:
    said = str(refused({"columns": text}))
    assert said.startswith("--columns: found ")
    assert "expected values, loss or both, separated by a comma" in said


@pytest.mark.parametrize(("text", "read"), [("loss", "loss"), ("values, loss", "values loss"), ("", None)])
def test_columns_are_words(text: str, read: str | None) -> None:
    config = load_config({"columns": text}, {}).config
    assert config.columns == read
    assert ("columns" in effective(config)) == (read is not None), "older configurations keep their hash"
    assert row_bytes(config) == 28 + {None: 0, "loss": 4, "values loss": 20}[read]


def test_a_block_on_tape_has_more_rows() -> None:
    assert RecorderConfig().rows_buffered_max == 262_144
    assert RecorderConfig(storage="tape").rows_buffered_max == 1_048_576
    assert RecorderConfig(storage="tape", block_rows=2048).rows_buffered_max == 2048
    assert RecorderConfig(storage="tape", rotate_steps=5).rows_buffered_max == 5


def test_a_tape_of_some_of_the_steps_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "r.toml", 'storage = "tape"\n\nsample_rate = 2\n')
    error = refused(file=file)
    assert str(error).startswith(
        f"{file}:3: sample_rate: found 2, expected 1: a tape ({file}:1) keeps every step"
    )
    assert 'storage = "rows"' in str(error.hint)
    assert load_config({"sample_rate": 1}, {}, file).config.storage == "tape"
    assert load_config({"storage": "rows"}, {}, file).config.sample_rate == 2
    assert "expected rows or tape" in str(refused({"storage": "tapes"}))


def test_row_bytes_and_tags_are_those_of_the_format() -> None:
    assert ACTION_STEP_DTYPE.itemsize == loading.ROW_BYTES_MAX
    assert TAPE_DTYPE.itemsize + ANCHOR_DTYPE.itemsize / ANCHOR_ROWS == loading.TAPE_ROW_BYTES
    for record_action in (False, True):
        config = RecorderConfig(record_action=record_action)
        assert loading.row_bytes(config) == step_dtype(record_action=record_action).itemsize
    assert loading.row_bytes(RecorderConfig(storage="tape", record_action=True)) == 1.5
    for tag in ("a", "9", "x" * 100, "a.b_c+d-e"):
        loaded = load_config({"model_tag": tag}, {})
        assert SESSION_NAME.fullmatch(f"20260101T000000Z_model={loaded.config.tag}")


@pytest.mark.parametrize(
    ("player", "tag"),
    [
        ("expectimax:depth=2", "expectimax"),
        ("python:pkg.mod:make", "python-pkg.mod-make"),
        ("x" * 200, "x" * 100),
    ],
)
def test_the_tag_is_derived_from_the_player(player: str, tag: str) -> None:
    loaded = load_config({"player": player}, {})
    assert loaded.config.tag == tag
    assert effective(loaded.config)["model_tag"] == tag
    assert SESSION_NAME.fullmatch(f"20260101T000000Z_model={tag}")


def test_the_hash_is_over_canonical_json() -> None:
    plain = RecorderConfig()
    # Written out once: a change here makes sessions of equal configuration look different.
    assert config_sha256(plain) == "fa517343cd0b1623d5ce7cc4584746f33f91992f2100eee05533f98340762c11"
    assert config_sha256(RecorderConfig(out_dir="x", model_dir="/home/ada/m")) == config_sha256(plain)
    beyond_ascii = RecorderConfig(start_where="für Ω")
    assert config_sha256(beyond_ascii) == "293d75cd4cef6ca183b2ba1342a4c20c96b9b9b6c97d4cd7c8601b7ae8ac2921"
    assert json.loads(json.dumps(effective(plain))) == effective(plain)
    assert msgspec.convert(effective(plain), RecorderConfig).tag == plain.tag
    changed = {
        config_sha256(msgspec.structs.replace(plain, **{name: value})) for name, value in CHANGES.items()
    }
    assert len(changed) == len(CHANGES)
    assert config_sha256(plain) not in changed
    reordered = [RecorderConfig(player_args=dict(pairs)) for pairs in (A_THEN_B, A_THEN_B[::-1])]
    assert config_sha256(reordered[0]) == config_sha256(reordered[1])


CHANGES: dict[str, object] = {
    "workers": 1, "seed": 2**64 - 1, "player_args": {"a": 1}, "rotate_s": 1.0, "model_tag": "a",
}  # fmt: skip
A_THEN_B = [("a", 1), ("b", 2)]


@pytest.mark.parametrize(("timeout", "refused"), [("61", False), ("60", True), ("1min", True), ("20", True)])
def test_a_drain_fits_the_stop_timeout(timeout: str, refused: bool) -> None:
    env = {STOP_TIMEOUT_ENV: timeout}
    if not refused:
        assert load_config({}, env).config == RecorderConfig()
        return
    with pytest.raises(
        ConfigError, match=r"drain_timeout_s: found 60, expected less than the \d+ s"
    ) as caught:
        load_config({}, env)
    assert "TimeoutStopSec=" in (caught.value.hint or "")
    assert load_config({"drain_timeout_s": "5"}, env).config.drain_timeout_s == 5


@pytest.mark.parametrize("timeout", ["", "soon", "0", "-1"])
def test_a_stop_timeout_that_is_none_is_refused(timeout: str) -> None:
    with pytest.raises(ConfigError, match=STOP_TIMEOUT_ENV):
        load_config({}, {STOP_TIMEOUT_ENV: timeout})
