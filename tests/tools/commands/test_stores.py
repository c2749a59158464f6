"""Commands on the address of a store: the sums of a directory, without its rows; and removal in two steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk.store_servers import CLOUDS, KINDS, hub_server, s3_environment, store_url

from tape2048 import errors
from tape2048.session.session import sessions
from tape2048.stores.objects import open_store
from tape2048.stores.remote import list_sessions, put_session

from ..conftest import Cli


@pytest.fixture(params=[*KINDS, *CLOUDS])
def url(request: pytest.FixtureRequest, tmp_path: Path, root: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path / "place") as found:
        for path in sessions(root):
            put_session(open_store(found), path, "00000a")
        yield found if "://" in found else f"file://{found}"


def rows_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.name in {"steps.npy", "tape.npy"}]


def test_list_and_show_fetch_no_rows(cli: Cli, url: str, root: Path, tmp_path: Path) -> None:
    """List and show have the numbers of the directory and fetch no rows."""
    cache = tmp_path / "cache"
    mine, theirs = cli("list", root, "--json").json, cli("list", url, "--cache", cache, "--json").json
    assert theirs["root"] == url
    (lease,) = theirs["leases"]
    assert (lease["lease"], lease["sessions"]) == ("00000a", len(sessions(root)))
    # Sizes there are those of the files that the manifest lists, and so without it.
    without = sum((path / "manifest.json").stat().st_size for path in sessions(root))
    assert mine["total"].pop("bytes") - theirs["total"].pop("bytes") == without
    assert theirs["total"] == mine["total"]
    for a, b in zip(mine["sessions"], theirs["sessions"], strict=True):
        assert b["name"].startswith(f"{a['name']}.00000a.")
        assert b["path"].endswith(f"/sessions/{b['name']}")
        own = dict.fromkeys(("name", "path", "bytes"))
        assert a | own == b | own
    assert "on tape" in cli("list", url, "--cache", cache).out or "recovered" in cli("list", url).out
    whole, there = cli("show", root, "--json").json, cli("show", url, "--cache", cache, "--json").json
    for document in (whole, there):
        document.pop("root")
        document.pop("bytes")
        for name in ("session", "exps", "step"):
            document["best"].pop(name)
    assert there == whole
    one = theirs["sessions"][0]["path"]
    one = one if "://" in one else f"file://{one}"
    shown, expected = cli("show", one, "--cache", cache, "--json").json, cli("show", sessions(root)[0])
    assert expected.code == 0
    assert shown["games"] == mine["sessions"][0]["games"]
    assert shown["best"]["exps"] is None
    assert not rows_in(cache)


def test_a_published_directory_is_listed_from_a_hub(cli: Cli, root: Path, tmp_path: Path) -> None:
    """As `hf upload` leaves it."""
    cache, (first, second) = ["--cache", tmp_path / "cache"], sessions(root)
    with hub_server(root) as address, s3_environment(address, "hf"):
        place = "hf://datasets/USER/NAME"
        mine, theirs = (
            cli("list", each, "--json", *more).json for each, more in ((root, ()), (place, cache))
        )
        assert theirs["total"]["games"] == mine["total"]["games"]
        assert [one["path"] for one in theirs["sessions"]] == [
            f"{place}/{each.name}" for each in (first, second)
        ]
        assert (
            cli("show", f"{place}/{second.name}", "--json", *cache).json["games"]
            == mine["sessions"][1]["games"]
        )
        assert not rows_in(tmp_path / "cache")
        done = cli("list", "hf://datasets/USER/OTHER", *cache, expect=errors.MissingPathError)
        assert "no such repository or revision, or no access to it" in done.err
        assert "HF_TOKEN" in done.err


def test_a_store_s_directory_is_listed(cli: Cli, root: Path, tmp_path: Path) -> None:
    """Without the sessions that an earlier release has removed."""
    place = tmp_path / "store"
    store = open_store(str(place))
    place.mkdir()
    names = [put_session(store, path, "00000a") for path in sessions(root)]
    listed = cli("list", place, "--json").json
    assert [one["name"] for one in listed["sessions"]] == names
    store.put(f"removed/{names[0]}.json", b"{}")
    assert [one["name"] for one in cli("list", place, "--json").json["sessions"]] == names[1:]
    assert cli("show", place, "--json").json["sessions"] == 1
    assert cli("validate", place).code == 0


def test_a_damaged_run_table_is_listed_with_its_error(cli: Cli, url: str, tmp_path: Path) -> None:
    store = open_store(url)
    name = list_sessions(store)[0]
    store.put(f"sessions/{name}/metadata.db", b"damaged")
    for command in ("list", "show"):
        done = cli(command, url, "--cache", tmp_path / "cache", "--json", expect=1)
        assert [(one["name"], one["error"]) for one in done.json["broken"]] == [(name, "TruncatedError")]
    done = cli("show", f"{url}/sessions/{name}", "--cache", tmp_path / "cache", expect=errors.TruncatedError)
    assert "metadata.db" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ["validate"],
        ["prune"],
        ["merge"],
        ["visualize"],
        ["repack"],
        ["embed", "--tower", "x:y"],
        ["view"],
        ["report", "--out", "x"],
    ],
)
def test_other_commands_say_that_they_take_paths(cli: Cli, command: list[str]) -> None:
    done = cli(*command, "s3://bucket/place", expect=78)
    assert "found the address s3://bucket/place, expected a path" in done.err
    assert "list, show" in done.err
