"""``tape2048 card``: its two files, and the directory as the Hub returns it."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import DatasetCard, constants

from tape2048 import Corpus, Session, sessions
from tape2048.base.intervals import wilson
from tape2048.session.column_draft import write_column

from ..conftest import META, Cli, Game, write_session

REVISION = "a" * 40
URL = "https://huggingface.co/datasets/someone/games"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sessions of two players, one of them with a column."""
    for day in (1, 2):
        games = [Game(100 * day + i, 150, 9_000 + i, (512, 1024, 2048, 8192)[i % 4]) for i in range(8)]
        meta = {**META, "player_sha256": f"{day}" * 64, "player_args": {"depth": day}, "rules": day}
        write_session(tmp_path / f"selfplay/2026010{day}T000000Z_model=x", games, meta)
    last = Session.open(sessions(tmp_path / "selfplay")[1])
    write_column(last, "doubt", last.tokens(slice(None))[:, :2], dtype="f32", facts={"maker": "a|b"})
    return tmp_path / "selfplay"


def front_matter(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((root / "README.md").read_text().split("---\n")[1])
    return found


def run_code(text: str) -> dict[str, Any]:
    """Run the Python of a page, as printed."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # noqa: S102 - the code of a card that the test made
    return names


def cached(root: Path, cache: Path) -> Path:
    """What snapshot_download leaves in the Hub's cache: links into a directory of blobs."""
    repo = cache / "datasets--someone--games"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(REVISION)
    (repo / "blobs").mkdir()
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        target = repo / "snapshots" / REVISION / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, repo / f"blobs/{number}")
        target.symlink_to(os.path.relpath(repo / f"blobs/{number}", target.parent))
    return repo / "snapshots" / REVISION


def test_the_hub_reads_the_front_matter(cli: Cli, root: Path) -> None:
    title = 'Games: "2048"\n<b>&'
    cli("card", root, "--title", title, "--license", "cc-by-4.0", "--url", URL)
    facts = front_matter(root)
    assert facts["pretty_name"] == title.replace("\n", r"\n")
    assert (facts["license"], facts["configs"][0]["data_files"]) == ("cc-by-4.0", "games.parquet")
    assert facts["size_categories"] == ["1K<n<10K"]
    DatasetCard.load(root / "README.md").data.to_dict()
    assert all(isinstance(tag, str) for tag in facts["tags"])


def test_tables_have_the_numbers(cli: Cli, root: Path) -> None:
    cli("card", root)
    text = (root / "README.md").read_text()
    low, high = (f"{100 * bound:.1f}" for bound in wilson(8, 16)[1:])
    assert f"| 2048 | 8 | 50% ({low}-{high}) |" in text
    assert "| expectimax, 2-ply @111111 | expectimax:depth=1 | 8 | 9,004 | 9,007 | 75% (" in text
    assert r"| doubt | f32[N, 2] | a\|b | 1 |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "(rules 1)" in text
    assert "(rules 2)" in text
    assert "thresholds=(1024, 2048, 8192)" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning:rdflib")
def test_mlcroissant_finds_no_error(cli: Cli, root: Path) -> None:
    import mlcroissant  # late: it takes seconds

    done = cli("card", root, "--url", URL, "--json")
    assert done.json["upload"] == f"tape2048 publish {root} --to hf://datasets/someone/games"
    assert done.json["files"] == ["README.md", "croissant.json"]
    document = json.loads((root / "croissant.json").read_bytes())
    found = mlcroissant.Dataset(jsonld=document)  # it raises for an error
    assert (document["conformsTo"].rpartition("/")[2], document["url"]) == ("1.1", URL)
    assert not found.metadata.ctx.issues.errors
    (reach,) = (one for one in found.records("reach") if one["reach/tile"] == 8192)
    assert (reach["reach/games"], reach["reach/low"]) == (4, pytest.approx(wilson(4, 16).low))
    assert [one["players/games"] for one in found.records("players")] == [8, 8]
    for path in sessions(root)[1].iterdir():
        sets = [str(found) for one in document["distribution"] for found in np.atleast_1d(one["includes"])]
        assert sum(Path(path.parent.name, path.name).match(each) for each in sets) == 1
    document["recordSet"][0]["data"][0].pop("players/games")
    with pytest.raises(mlcroissant.ValidationError):
        mlcroissant.Dataset(jsonld=document)


def test_the_snapshot_opens_as_printed(
    cli: Cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("card", root, "--url", URL)
    before = cli("list", root, "--json").json
    snapshot = cached(root, tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    names = run_code((snapshot / "README.md").read_text())
    assert names["corpus"].sessions[0].path.parent == snapshot
    here = Corpus.open(root).split(train=0.8, val=0.2)["val"].runs["seed"]
    assert names["parts"]["val"].runs["seed"].tolist() == here.tolist()
    assert set(names["batch"]) >= {"tokens", "labels"}
    cli("validate", snapshot)
    for option in ("--scores", "--no-scores"):
        after = cli("list", snapshot, option, "--json").json
        assert after["total"]["bytes"] == before["total"]["bytes"]
    assert after["sessions"][0]["mean_score"] is None  # from the manifest alone
    (snapshot / sessions(root)[0].name / "steps.npy").resolve().unlink()
    broken = cli("list", snapshot, expect=1)
    assert "lists steps.npy, which is missing" in broken.out


def test_other_files_disturb_nothing(cli: Cli, root: Path) -> None:
    """With local_dir, snapshot_download adds files of its own."""
    cli("card", root)
    (root / ".gitattributes").write_text("*.npy filter=lfs\n")
    (root / ".cache/huggingface/download").mkdir(parents=True)
    (root / ".cache/huggingface/CACHEDIR.TAG").write_text("")
    assert len(Corpus.open(root).sessions) == 2
    cli("validate", root)
    assert cli("list", root, "--json").json["broken"] == []
    cli("recover", root)
    cli("card", root)
    cli("prune", root, "--max-sessions", "1", "--json")
    assert len(sessions(root)) == 1
    left = {".cache", ".gitattributes", "README.md", "croissant.json"}
    assert left <= {path.name for path in root.iterdir()}


def test_sessions_of_others_have_unknown_facts(cli: Cli, root: Path) -> None:
    write_session(root / "20260103T000000Z_model=x", [Game(1, 9, 99, 256)], {})
    cli("card", root)
    text = (root / "README.md").read_text()
    assert "| sample rate of positions | 1, unknown |" in text
    assert "Some sessions do not record their rules." in text


def test_damage_writes_nothing(cli: Cli, root: Path) -> None:
    steps = sessions(root)[1] / "steps.npy"
    content = bytearray(steps.read_bytes())
    content[5000] ^= 1
    steps.write_bytes(content)
    before = sorted(root.iterdir())
    done = cli("card", root, "--force", expect=4)
    assert f"{steps.parent}: damaged: " in done.err
    assert f"tape2048 validate {root}" in done.err
    assert sorted(root.iterdir()) == before
    cli("card", root / "missing", expect=3)
    cli("card", sessions(root)[0], expect=8)


def test_a_file_of_somebody_is_kept(cli: Cli, root: Path) -> None:
    """Only a file exactly as the command wrote it is replaced without --force."""
    readme, croissant = root / "README.md", root / "croissant.json"
    cli("card", root)
    cli("card", root, "--title", "other")
    written = readme.read_text()
    readme.write_text(written + "by me\n")
    croissant.unlink()
    done = cli("card", root, expect=6)
    assert readme.read_text() == written + "by me\n"
    assert "--force" in done.err
    assert not croissant.exists()
    cli("card", root, "--force", "--title", "other")
    assert readme.read_text() == written
    croissant.unlink()
    croissant.mkdir()
    cli("card", root, "--force", "--title", "more", expect=6)
    assert readme.read_text() == written


def test_names_are_no_markup(cli: Cli, tmp_path: Path) -> None:
    meta = {"player": "<img src=x> [a](http://b) | &lt;", "engine": "<b>e</b>", "config": {}}
    write_session(tmp_path / "selfplay/20260101T000000Z_model=x", [Game(1, 50, 900, 256)], {**META, **meta})
    cli("card", tmp_path / "selfplay", "--title", "<i>t</i>")
    card = (tmp_path / "selfplay/README.md").read_text().partition("-->")[2]
    assert not re.search(r"<(img|b|i)\b|[^\\]\]\(http://b", card)
    assert "&lt;img src=x&gt; [a]\\(http://b) \\| &amp;lt;" in card
    assert "# &lt;i&gt;t&lt;/i&gt;" in card
    assert "&lt;b&gt;e&lt;/b&gt;" in card
