"""More keys than an answer of S3 lists: 1,000 a page."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tape2048 import Corpus
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import list_sessions
from tape2048_recorder.fleet.agent import Beat
from tape2048_recorder.fleet.plan import create_fleet, lease_label
from tape2048_recorder.record_options import RecorderConfig
from tape2048_tools.cli import run

from ..tools.small_sessions import fill_store
from .builders import NAME, write_ours
from .store_servers import s3_environment, s3_server

#: Three files each: more than a page of keys, as are the nodes' heartbeats.
SESSIONS, NODES = 334, 1001


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A fleet of more nodes than a page has keys, and with more files."""
    directory = tmp_path_factory.mktemp("many")
    fill_store(directory / "place", write_ours(directory / NAME), SESSIONS)
    with s3_server("moto", directory / "served") as address, s3_environment(address):
        store = open_store("s3://bucket/served")
        create_fleet(store, RecorderConfig(player="random", seed=1))
        for path in sorted((directory / "place").rglob("*.*")):
            if path.is_file():
                store.put(path.relative_to(directory / "place").as_posix(), path.read_bytes())
        for lease in range(1, NODES + 1):
            beat = Beat(
                lease=lease, agent="a", number=9, host="node", pid=1, written_at=0.0, state="ended", bytes=7
            )
            store.put(f"agents/{lease_label(lease)}.json", msgspec.json.encode(beat))
        yield store
        pages = (directory / "served.log").read_text().count("continuation-token")
        assert pages >= 4, "each of the listings below took another page"


def test_list_and_corpus_have_all_sessions(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = list_sessions(store)
    assert len(names) == SESSIONS
    corpus = Corpus.open(store.url, cache=tmp_path, duplicates="keep")
    assert [session.address.rpartition("/")[2] for session in corpus.sessions] == names  # type: ignore[attr-defined]
    capsys.readouterr()
    assert run(["list", store.url, "--cache", str(tmp_path), "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["sessions"]] == names


def test_fleet_status_has_all_nodes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "status", store.url, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert [node["beat"]["lease"] for node in seen["nodes"]] == list(range(1, NODES + 1))
    assert (seen["sessions"], seen["bytes"]) == (SESSIONS, 7 * NODES)
