"""Settings as data: what a field declares, reading a file and flags, and the file that explains them."""

from pathlib import Path
from typing import Annotated

import pytest

from tape2048.base.settings import Count, Settings, about, load_settings, settings_of, settings_toml
from tape2048.errors import ConfigError


class Few(Settings, frozen=True, kw_only=True):
    """A configuration."""

    tiles: Annotated[
        str, about("tiles", why="few", form="tiles", many=True, pattern=r"^[0-9]+( [0-9]+)*$")
    ] = "2048"
    rows_max: Annotated[Count | None, about("rows", why="as many as there are", none="off")] = None
    share: Annotated[float, about("a share", why="half of it", ge=0, le=1)] = 0.5
    order: Annotated[str, about("an order", why="any", choices=("up", "down", "none"))] = "up"
    seed: Annotated[int, about("decides the order", why="can be repeated", ge=0, le=2**64 - 1)] = 1

    def check(self) -> None:
        if self.rows_max == 13:
            raise ConfigError("found 13 rows, expected luck")


def load(path: Path | None, **flags: object) -> Few:
    return load_settings(Few, path, flags, listed_by="few --print-config")


def test_bounds_and_words_are_what_the_field_says() -> None:
    expected = {name: setting.expected for name, setting in settings_of(Few).items()}
    assert expected == {
        "tiles": "tiles", "rows_max": 'a whole number of at least 1, or "off"',
        "share": "a number from 0 to 1", "order": "up, down or none",
        "seed": f"a whole number from 0 to {2**64 - 1}",
    }  # fmt: skip


def test_flags_before_file_before_defaults(tmp_path: Path) -> None:
    path = tmp_path / "few.toml"
    path.write_text("tiles = [1024, 2048]\nshare = 0.25\nrows_max = 7\n")
    assert load(path, share="0.75", rows_max=None) == Few(tiles="1024 2048", share=0.75, rows_max=7)
    assert load(None, rows_max="2_000") == Few(rows_max=2000)
    assert load(path, rows_max="off").rows_max is None


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("rows = 3", ConfigError, r"few.toml:1: found 'rows'.*nearest is 'rows_max'"),
        ("\nshare = 2", ConfigError, "few.toml:2: share: found 2, expected a number from 0 to 1"),
        ("rows_max = 13", ConfigError, "few.toml: found 13 rows"),
        ('order = "sideways"', ConfigError, "order: found 'sideways', expected up, down or none"),
        ("seed = 18446744073709551616", ConfigError, "seed"),
    ],
)
def test_what_cannot_be_is_placed(tmp_path: Path, text: str, kind: type[ConfigError], said: str) -> None:
    path = tmp_path / "few.toml"
    path.write_text(text)
    with pytest.raises(kind, match=said):
        load(path)


def test_the_sample_of_a_config_means_it(tmp_path: Path) -> None:
    config = Few(tiles="1024 2048", rows_max=7, seed=2**64 - 1)
    path = tmp_path / "few.toml"
    path.write_text(settings_toml(config))
    assert load(path) == config
    assert "# Default (0.5)" not in path.read_text()
    assert '# Default ("off"): as many as there are.\nrows_max = 7' in path.read_text()
