"""Examining a critic and scoring rows with it, by the command, with small critics that were not trained."""

import csv
import io
import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.sdk.critics import TILES, make_games, save_tower

from tape2048 import Corpus, Session
from tape2048.critic.evaluation import Evaluation
from tape2048.critic.facts import SplitInfo
from tape2048.errors import (
    ColumnError,
    CorpusError,
    EmptyCorpusError,
    MissingPackageError,
    ModelError,
    NameTakenError,
    StorageError,
)
from tape2048.torch.heads import CriticHead, HeadInfo
from tape2048.torch.torch_critic import CriticInfo, TorchCritic, TowerInfo, save_critic
from tape2048.torch.tower import Tower, TowerConfig, tower_sha256
from tape2048_tools.critic_report import document as document_of
from tape2048_tools.viewer.report import one_file

from ..conftest import Tape

CONFIG = TowerConfig(dim=8, layers=1, heads=1, ffn=8)
SHARES = {"train": 0.5, "val": 0.25, "test": 0.25}
METRICS = [
    {"kind": "train", "step": 20, "loss": 0.7}, {"kind": "train", "step": 40, "loss": 0.6},
    {"kind": "val", "step": 40, "loss": 0.65, "best": True},
]  # fmt: skip


class Made:
    """Sessions, a critic of tokens in ``out/best`` and one of embeddings in ``probe``, with its tower."""

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(3)
        self.root = make_games(directory / "selfplay")
        self.corpus = Corpus.open(self.root)
        self.critic = directory / "out/best"
        self.probe = directory / "probe"
        self.tower = directory / "tower"
        tower = Tower(CONFIG)
        save_tower(self.tower, tower)
        facts: dict[str, Any] = {
            "thresholds": list(TILES), "head": HeadInfo(in_dim=8), "split": SplitInfo(fractions=SHARES),
            "corpus_hash": self.corpus.identity, "step": 40, "training": {"per_run": 10},
        }  # fmt: skip
        sha256 = tower_sha256(tower)
        head = CriticHead(8, TILES)
        own = TowerInfo(sha256=sha256, config=CONFIG)
        save_critic(self.critic, CriticInfo(kind="tokens", tower=own, **facts), head, tower)
        save_critic(self.probe, CriticInfo(kind="embeddings", tower=TowerInfo(sha256=sha256), **facts), head)
        lines = [json.dumps(line) for line in METRICS]
        (directory / "out/metrics.jsonl").write_text(
            "\n".join([*lines[:2], "{torn", '{"x":' + "[" * 50_000, *lines[2:]]) + "\n"
        )
        self.sha256 = sha256

    def embed(self, model_sha: str) -> None:
        """Embeddings of every session, as the embedding job leaves them."""
        for session in self.corpus.sessions:
            tokens = torch.from_numpy(session.tokens(slice(None)))
            tower = Tower(CONFIG).eval()
            state = TorchCritic.load(self.critic, "cpu").tower
            tower.load_state_dict(state.state_dict())
            with torch.inference_mode():
                values = tower(tokens).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
            np.save(session.path / "embeddings.bf16.npy", values)
            facts = {
                "model_sha": model_sha, "pooling": "mean", "D": 8, "dtype": "bf16", "rows": len(session),
                "steps_crc32c": session.manifest.files["steps.npy"].crc32c,
            }  # fmt: skip
            (session.path / "embeddings.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("critic-eval"))


QUICK = ("--bootstrap", "50", "--player", "none", "--device", "cpu")


@pytest.fixture(scope="module")
def examined(made: Made) -> tuple[Evaluation, dict[str, Any]]:
    """What the command finds, by the function behind it (a fixture of the module cannot run the command)."""
    from tape2048_tools.critic_report import examine

    return examine(
        made.critic, [made.root], part="val", by="moves", per_run=None, rows_max=0, bootstrap=50, seed=0,
        player="none", tower=None, device="cpu", quiet=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def document(examined: tuple[Evaluation, dict[str, Any]]) -> dict[str, Any]:
    """What ``--json`` says."""
    return document_of(*examined)


def test_json_names_what_was_examined(tape: Tape, made: Made, document: dict[str, Any]) -> None:
    done = tape("critic", "eval", made.critic, made.root, "--split", "validation", *QUICK, "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert found == json.loads(json.dumps(document))
    val = made.corpus.split(**SHARES)["val"]
    assert (found["part"], found["evaluation"]["runs"], found["runs_in_all"]) == ("val", len(val.runs), 120)
    assert found["evaluation"]["rows"] == 10 * len(val.runs)  # as in training
    assert found["critic_sha256"] == TorchCritic.load(made.critic, "cpu").sha256
    assert found["notes"] == [
        "These are the sessions that the critic was trained on, split as in its training."
    ]
    cell = found["evaluation"]["cells"][1]
    assert (cell["stage"], cell["threshold"]) == ("all", 8192)
    assert cell["runs_positive"] == int((val.runs["highest_tile"] >= 8192).sum())
    auroc = cell["scores"]["critic"]["auroc"]
    assert auroc["low"] < auroc["value"] < auroc["high"]
    assert cell["scores"]["prevalence"]["brier"]["value"] == pytest.approx(0.25, abs=0.05)


def test_tables_and_csv_say_the_same(tape: Tape, made: Made) -> None:
    done = tape("critic", "eval", made.critic, made.root, *QUICK)
    assert done.code == 0, done.err
    assert "8192: AUROC" in done.out
    assert "part unseen" in done.out
    rows = len(made.corpus.split(**SHARES)["test"])
    assert f"at most 10 of each, weighted as all {rows:,}" in " ".join(done.out.split())
    lines = list(
        csv.DictReader(io.StringIO(tape("critic", "eval", made.critic, made.root, *QUICK, "--csv").out))
    )
    assert len(lines) == 5 * len(TILES) * 3
    one = next(
        line
        for line in lines
        if (line["stage"], line["threshold"], line["predictor"]) == ("all", "8192", "critic")
    )
    shown = f"{float(one['auroc']):.3f} ({float(one['auroc_low']):.3f}-{float(one['auroc_high']):.3f})"
    assert shown in done.out
    assert 0 < float(one["prevalence"]) < 1
    assert one["gain"] == ""


class Page(HTMLParser):
    """What a page asks for from elsewhere, and the document in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.script = ""
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        for name in ("src", "href", "xlink:href", "action", "data"):
            target = named.get(name)
            if target is not None and not target.startswith("#"):
                self.links.append(target)
        self._script = tag == "script" and named.get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        if self._script:
            self.script += data

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def test_the_report_is_one_file_that_asks_for_nothing(tape: Tape, made: Made, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = tape("critic", "eval", made.critic, made.root, *QUICK, "--out", out, "--json")
    assert done.code == 0, done.err
    text = out.read_text()
    page = Page()
    page.feed(text)
    assert page.links == []
    for word in ("@import", "url(http", "//cdn"):
        assert word not in text
    shown = json.loads(page.script)
    assert shown["examination"] == done.json
    assert shown["curves"] == {"train": [[20, 0.7], [40, 0.6]], "val": [[40, 0.65]], "best_step": 40}
    again = tape("critic", "eval", made.critic, made.root, *QUICK, "--out", out)
    assert (again.code, "--force" in again.err) == (NameTakenError.exit_code, True)
    assert tape("critic", "eval", made.critic, made.root, *QUICK, "--out", out, "--force").code == 0
    assert out.read_text() == text
    assert (
        tape("critic", "eval", made.critic, made.root, "--out", tmp_path / "no/dir.html").code
        == StorageError.exit_code
    )


def test_an_unreached_tile_has_words_for_figures(
    examined: tuple[Evaluation, dict[str, Any]], browser: Any, tmp_path: Path
) -> None:
    evaluation, about = examined
    tile = TILES[-1]
    none = "0 positive runs of 30"
    cells = [
        replace(
            one,
            note=none,
            runs_positive=0,
            scores={k: replace(v, auroc=None) for k, v in one.scores.items()},
        )
        if one.threshold == tile
        else one
        for one in evaluation.cells
    ]
    found = document_of(replace(evaluation, cells=cells), about)
    out = tmp_path / "report.html"
    out.write_bytes(one_file("report", {"examination": found, "curves": None}))
    page = browser.new_page(offline=True)
    page.goto(out.as_uri())
    page.locator("#main[data-ready=yes] svg").first.wait_for()
    assert page.locator("svg").count() == 2 * (len(TILES) - 1)
    assert page.locator(f"figcaption:text('AUROC for {tile} by stage')").count() == 0
    assert page.get_by_text(f"{tile} is not measured: 0 of {evaluation.runs} games reached it.").count() == 1
    rows = page.locator("#main table").first.locator(f"tbody tr:has(th:text-is('{tile}'))")
    assert rows.count() == 0
    page.close()


def test_the_report_shows_what_the_tables_do(tape: Tape, made: Made, browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = tape("critic", "eval", made.critic, made.root, *QUICK, "--out", out)
    assert done.code == 0, done.err
    page = browser.new_page(offline=True)
    page.goto(out.as_uri())
    page.locator("figcaption:text('Learning curves')").wait_for()
    page.locator("#main svg").nth(2 * len(TILES)).wait_for()
    spoken = [svg.get_attribute("aria-label") for svg in page.locator("#main svg").all()]
    assert sum(label.startswith("Reliability for") for label in spoken) == len(TILES)
    assert "validation: from 0.65 at 40" in spoken[-1]
    for row in page.locator(f"table:has(caption:text('Scores for {TILES[0]} by stage')) tbody tr").all():
        stage, *cells = row.locator("th, td").all_text_contents()
        value = cells[3][:5]
        assert value in next(line for line in done.out.splitlines() if line.startswith(stage))
    page.close()


@pytest.mark.slow
def test_the_players_value_is_a_baseline(tape: Tape, made: Made) -> None:
    flags = [
        "--bootstrap", "0", "--per-run", "2", "--device", "cpu", "--player", "ntuple:weights=fast",
        "--json",
    ]  # fmt: skip
    done = tape("critic", "eval", made.critic, made.root, *flags)
    assert done.code == 0, done.err
    assert done.json["evaluation"]["predictors"] == [
        "critic", "prevalence", "highest tile", "ntuple:weights=fast",
    ]  # fmt: skip
    cell = done.json["evaluation"]["cells"][1]
    assert cell["scores"]["ntuple:weights=fast"]["auroc"]["value"] > 0.6
    assert tape("critic", "eval", made.critic, made.root, "--player", "greedy").code == 78


def test_a_critic_of_embeddings(tape: Tape, made: Made) -> None:
    args = ("critic", "eval", made.probe, made.root, *QUICK, "--json")
    assert tape(*args).code == ColumnError.exit_code  # there are none
    with_tower = tape(*args, "--tower", made.tower)
    assert with_tower.code == 0, with_tower.err
    made.embed("ab" * 32)
    other = tape(*args)
    assert (other.code, "another" in other.err or "abababab" in other.err) == (ColumnError.exit_code, True)
    made.embed(made.sha256)
    done = tape(*args)
    assert done.code == 0, done.err
    values = [
        [cell["scores"]["critic"]["auroc"]["value"] for cell in found.json["evaluation"]["cells"][:3]]
        for found in (done, with_tower)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-3)


def test_by_default_it_uses_the_games_that_the_critic_has_not_learned_from(
    tape: Tape, made: Made, tmp_path: Path
) -> None:
    """Its test part, and all games of other players. Tables without a measurable stage become one line."""
    own = tape("critic", "eval", made.critic, made.root, *QUICK, "--json").json
    assert own["evaluation"]["runs"] == len(made.corpus.split(**SHARES)["test"].runs)
    info = TorchCritic.load(made.critic, "cpu").info
    other = tmp_path / "other"
    shutil.copytree(made.critic, other)
    facts = json.loads((other / "critic.json").read_bytes())
    facts["players"] = [{"name": "other", "sha256": "b" * 64, "games": 9}]
    (other / "critic.json").write_text(json.dumps(facts))
    assert info.players == []
    strong = ("--where", "highest_tile >= 8192")
    found = tape("critic", "eval", other, made.root, *QUICK, *strong)
    games = int((made.corpus.runs["highest_tile"] >= 8192).sum())
    assert found.code == 0, found.err
    assert f"The critic has not learned from {games} of {games} games." in found.out
    more = 5 * (games + 2) - games
    few = f"8192: too few games: all of {games} games reached the tile. Record at least {more} more."
    assert few in " ".join(found.out.split())
    assert "8192: AUROC" not in found.out
    assert "16384: AUROC" in found.out


def test_wrong_parts_and_flags(tape: Tape, made: Made, tmp_path: Path) -> None:
    unknown = tape("critic", "eval", made.critic, made.root, "--split", "holdout")
    assert unknown.code == CorpusError.exit_code
    assert "train, val, test, all" in unknown.err
    assert tape("critic", "eval", made.critic, made.root, "--json", "--csv").code == 2
    assert tape("critic", "eval", tmp_path, made.root, *QUICK).code == ModelError.exit_code
    assert tape("critic", "eval", made.critic, tmp_path, *QUICK).code == EmptyCorpusError.exit_code
    flattered = tape(
        "critic", "eval", made.critic, made.root, "--split", "all", "--where", "highest_tile >= 8192",
        *QUICK, "--per-run", "2", "--json",
    )  # fmt: skip
    assert any("too good" in note for note in flattered.json["notes"])
    strong = int((made.corpus.runs["highest_tile"] >= 8192).sum())
    found = flattered.json["evaluation"]
    assert (found["runs"], found["rows"]) == (strong, 2 * strong)
    bounded = tape(
        "critic", "eval", made.critic, made.root, "--split", "all", *QUICK, "--rows-max", "360", "--json"
    )
    assert bounded.json["evaluation"]["per_run"] == 3


def test_scores_of_a_session(tape: Tape, made: Made, tmp_path: Path) -> None:
    session, out = made.corpus.sessions[0], tmp_path / "columns"
    done = tape("critic", "score", made.critic, session.path, "--out", out, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    critic = TorchCritic.load(made.critic, "cpu")
    assert (done.json["critic_sha256"], done.json["sessions"][0]["rows"]) == (critic.sha256, len(session))
    found = Session.open(session.path, columns=out).column("scores").values
    np.testing.assert_allclose(found, critic(session.tokens(slice(None))), atol=1e-6)
    probe = tape("critic", "score", made.probe, session.path, "--out", out)
    assert (probe.code, "critic_sha256 is" in probe.err) == (ColumnError.exit_code, True)
    assert tape("embed", session.path, "--tower", made.tower, "--out", out, "--force").code == 0
    assert tape("critic", "score", made.probe, session.path, "--out", out, "--force").code == 0
    session = Session.open(session.path, columns=out)
    found = session.column("scores").values
    expected = TorchCritic.load(made.probe, "cpu").from_embeddings(session.column("embeddings").values)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_scikit_learn_is_needed_to_calibrate_baselines_only(
    tape: Tape, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.isotonic", None)
    assert tape("critic", "eval", "default", made.root, "--per-run", "4").code == 0
    monkeypatch.setattr("tape2048.critic.evaluation.take_sample", lambda *_, **__: pytest.fail("it reads"))
    done = tape("critic", "eval", made.probe, made.root, "--split", "test")
    assert done.code == MissingPackageError.exit_code
    assert "pip install scikit-learn" in done.err
