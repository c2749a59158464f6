"""``tape2048 publish``: sessions in one commit on a local server that answers as the Hub does."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from tests.sdk.store_servers import hub_server, s3_environment

from tape2048 import Corpus, Session, sessions
from tape2048.errors import StoreError
from tape2048.maintenance.validation import validate_session
from tape2048.session.column_draft import write_column

from ..conftest import META, Cli, Game, write_session

#: Of the HTTP client, for the file that huggingface_hub uploads.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TO = "hf://datasets/USER/NAME"


class Hub:
    """The server's directory, and whether it refuses a request."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refused, self.status, self.uploads = "nothing", 403, 0

    def spoil(self, request: Any) -> bool:
        line = f"{request.command} {request.path}"
        self.uploads += line.startswith("PUT")
        if spoilt := self.refused in line:
            request.answer(self.status)
        return spoilt

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without the data set. Files are uploaded by LFS: Xet needs a second server."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    found = Hub(tmp_path / "hub")

    def spoil(request: Any) -> bool:
        return found.spoil(request)

    with hub_server(found.root, spoil) as address, s3_environment(address, "hf"):
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for day in (1, 2):
        games = [Game(100 * day + i, 150, 9_000 + i, 1024) for i in range(8)]
        write_session(tmp_path / f"selfplay/2026010{day}T000000Z_model=x", games, META)
    (tmp_path / "selfplay/.20260103T000000Z_model=x.partial").mkdir()
    last = Session.open(sessions(tmp_path / "selfplay")[1])
    write_column(last, "doubt", last.tokens(slice(None))[:, 0], dtype="f32", facts={"maker": "x"})
    return tmp_path / "selfplay"


def test_a_published_set_opens_by_its_name(cli: Cli, root: Path, hub: Hub, tmp_path: Path) -> None:
    before = sorted(root.rglob("*"))
    done = cli("publish", root, "--to", TO, "--title", "Games", "--license", "mit", "--json", "--quiet")
    assert done.json["commit"].endswith("/datasets/USER/NAME/commit/" + "0" * 40)
    assert sorted(done.json["files"]) == hub.files()
    assert done.json["bytes"] == sum((hub.root / name).stat().st_size for name in hub.files())
    assert sorted(root.rglob("*")) == before
    here, there = Corpus.open(root), Corpus.open(TO, cache=tmp_path / "cache")
    assert there.runs.tobytes() == here.runs.tobytes()
    assert there[:].tobytes() == here[:].tobytes()
    table = pq.read_table(hub.root / "games.parquet").to_pydict()
    assert table["seed"] == here.runs["seed"].tolist()
    card = (hub.root / "README.md").read_text()
    assert 'pretty_name: "Games"' in card
    assert 'license: "mit"' in card
    assert f'Corpus.open("{TO}", cache=' in card
    assert json.loads((hub.root / "croissant.json").read_text())["license"] == "mit"


def test_a_second_publish_uploads_what_is_new(cli: Cli, root: Path, hub: Hub) -> None:
    cli("publish", root, "--to", TO)
    hub.uploads = 0
    write_session(root / "20260103T000000Z_model=x", [Game(1, 50, 900, 256)], META)
    shutil.rmtree(sessions(root)[0])
    done = cli("publish", root, "--to", TO, "--dry-run", "--json")
    assert (done.json["commit"], done.json["removed"], hub.uploads) == (None, [], 0)
    assert "in the data set, but not in" in done.err
    assert "20260101T000000Z_model=x. Pass --remove" in done.err
    assert "would upload 2 sessions" in cli("publish", root, "--to", TO, "--dry-run").out
    cli("publish", root, "--to", TO)
    assert hub.uploads == 3  # steps.npy, metadata.db, games.parquet
    assert len(sessions(hub.root)) == 3
    done = cli("publish", root, "--to", TO, "--remove")
    assert "removed 20260101T000000Z_model=x" in done.out
    assert [path.name for path in sessions(hub.root)] == [path.name for path in sessions(root)]


def test_the_card_of_the_directory_is_published(cli: Cli, root: Path, hub: Hub) -> None:
    """A title and a license stay; an edited card is uploaded unchanged."""
    cli("card", root, "--title", 'my "games"', "--license", "cc0-1.0")
    assert not cli("publish", root, "--to", TO).err
    assert 'license: "cc0-1.0"' in (hub.root / "README.md").read_text()
    readme = root / "README.md"
    readme.write_text(readme.read_text().replace('"cc0-1.0"', "mit") + "by me\n")
    assert "uploaded unchanged, because you edited it: README.md" in cli("publish", root, "--to", TO).err
    assert (hub.root / "README.md").read_text() == readme.read_text()
    facts = json.loads((hub.root / "croissant.json").read_text())
    assert (facts["name"], facts["license"]) == ('my "games"', "mit")


@pytest.mark.parametrize("refused", ["PUT /objects/", "POST /api/datasets/USER/NAME/commit/"])
def test_an_interrupted_upload_shows_nothing_and_continues(
    cli: Cli, root: Path, hub: Hub, refused: str
) -> None:
    hub.refused = refused
    done = cli("publish", root, "--to", TO, expect=StoreError)
    assert "publishing failed (HTTP 403" in done.err
    assert "Set HF_TOKEN to a token with access to USER/NAME" in done.err
    assert hub.files() == []
    first, hub.refused = hub.uploads, "nothing"
    cli("publish", root, "--to", TO)
    assert len(sessions(hub.root)) == 2
    assert (hub.uploads == first) == ("commit" in refused), "no file is uploaded twice"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_says_what_to_do(cli: Cli, root: Path, hub: Hub, status: int) -> None:
    hub.refused, hub.status = "POST /api/repos/create", status
    done = cli("publish", root, "--to", TO, expect=StoreError)
    assert f"{TO}: " in done.err
    assert "HF_TOKEN" in done.err
    assert "hf auth login" in done.err
    assert done.err.count("error: ") == 1


def test_bad_input_uploads_nothing(cli: Cli, root: Path, hub: Hub) -> None:
    for to in ("hf://USER/NAME", f"{TO}/part", "s3://bucket/x", "USER/NAME", "hf://datasets/NAME"):
        done = cli("publish", root, "--to", to, expect=78)
        assert "expected hf://datasets/OWNER/NAME" in done.err
    cli("publish", sessions(root)[0], "--to", TO, expect=8)
    steps = sessions(root)[1] / "steps.npy"
    steps.write_bytes(steps.read_bytes()[:-1] + b"x")
    assert "damaged: " in cli("publish", root, "--to", TO, expect=4).err
    shutil.rmtree(root)
    root.mkdir()
    assert "no session here" in cli("publish", root, "--to", TO, "--dry-run", expect=3).err
    assert not hub.root.exists()


def test_directories_hosts_and_users_stay_here(
    cli: Cli, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of early versions have them. What is left of them, in an edited card, is named."""
    args = {"weights": "/home/lovelace/nets/my.ntuple"}
    config = {
        "player": "ntuple",
        "player_args": args,
        "out_dir": "/home/lovelace/play",
        "start_from": "/home/lovelace/s.npy",
    }
    private = {**META, "player": "ntuple", "player_args": args, "config": config, "host": "lovelace-laptop"}
    early = write_session(root / "20260104T000000Z_model=x", [Game(7, 50, 900, 256)], private)
    facts = {"maker": "x", "judge": "ntuple:weights=/home/lovelace/nets/my.ntuple,ahead=2"}
    write_column(Session.open(early), "doubt", np.zeros(50, "f4"), dtype="f32", facts=facts)
    monkeypatch.setattr("platform.node", lambda: "lovelace-laptop")
    cli("card", root)
    readme = root / "README.md"
    readme.write_text(f"{readme.read_text()}recorded on lovelace-laptop\n")
    done = cli("publish", root, "--to", TO)
    assert "warning: README.md has the host's name, lovelace-laptop" in done.err
    named = [path for path in hub.files() if b"lovelace" in (hub.root / path).read_bytes()]
    assert named == ["README.md"]
    published = Session.open(hub.root / early.name)
    assert validate_session(published.path).ok
    assert published.meta["player_args"] == {"weights": "my.ntuple"}
    assert published.meta["config"]["start_from"] == "s.npy"
    assert published.column("doubt").info.facts["judge"] == "ntuple:weights=my.ntuple,ahead=2"


def test_a_dry_run_needs_no_hub(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://ada:secret@127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    done = cli("publish", root, "--to", TO, "--dry-run")
    assert "sessions that are only in the data set are unknown: hf://datasets/USER/NAME: listing" in done.err
    assert "secret" not in done.err
    assert "named in them: player expectimax:depth=2" in done.out
    assert "would upload 2 sessions" in done.out
    cli("publish", root, "--to", TO, expect=StoreError)
