"""More keys than an answer of S3 lists: 1,000 a page."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape2048 import Corpus
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import list_sessions
from tape2048_tools.cli import run

from ..tools.small_sessions import fill_store
from .builders import NAME, write_ours
from .store_servers import s3_environment, s3_server

#: Three files each: more than a page of keys.
SESSIONS = 334


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of more files than a page has keys."""
    directory = tmp_path_factory.mktemp("many")
    fill_store(directory / "place", write_ours(directory / NAME), SESSIONS)
    with s3_server("moto", directory / "served") as address, s3_environment(address):
        store = open_store("s3://bucket/served")
        for path in sorted((directory / "place").rglob("*.*")):
            if path.is_file():
                store.put(path.relative_to(directory / "place").as_posix(), path.read_bytes())
        yield store
        pages = (directory / "served.log").read_text().count("continuation-token")
        assert pages >= 3, "each of the listings below took another page"


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
