"""``tape2048 critic train`` and ``tape2048 embed`` as a person runs them, and what they show."""

import importlib.util
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.critics import make_games, save_tower

from tape2048 import errors
from tape2048.critic.critic_config import CriticConfig, LearningConfig
from tape2048.files.training_directory import TrainingProgress
from tape2048_tools.options.critic_options import EXAMPLES, example_toml, load_critic_config

from ..conftest import Tape

CHECKOUT = Path(__file__).resolve().parents[3]
SMALL = """\
data = "selfplay"
thresholds = [4096, 8192]
val_share = 0.2
test_share = 0.0
per_run = 24
tower_dim = 16
tower_layers = 1
tower_heads = 2
tower_ffn = 16
batch_rows = 128
epochs = 1
learning_rate = 0.01
threads = 1
device = "cpu"
"""


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_games(tmp_path_factory.mktemp("games") / "selfplay")


@pytest.fixture
def here(games: Path, tmp_path: Path) -> Path:
    """A directory with sessions and a configuration; it is the working directory."""
    shutil.copytree(games, tmp_path / "selfplay")
    (tmp_path / "critic.toml").write_text(SMALL)
    return tmp_path


def test_tokens_embeddings_probe(tape: Tape, here: Path) -> None:
    pytest.importorskip("torch")
    before = list(sys.path)
    done = tape("critic", "train", "--config", "critic.toml")
    assert done.code == 0, done.err
    found = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert found["ended"] == "all steps are made"
    assert found["best"].startswith("critic/best, from step ")
    assert re.fullmatch(r"4096 0\.\d{4}, 8192 0\.\d{4}", found["AUROC"])
    assert re.search(r"train \d+ games \([\d,]+ rows per epoch\), val \d+ games", found["parts"])
    assert "rows/s" in found["learned"]
    assert "waiting for data" in found["learned"]
    assert "tape2048 embed selfplay --tower critic/best" in done.out
    said = r"^\S+Z info step 18: validation loss 0\.\d+ \(best so far; base rate: 0\.\d+\)$"
    assert re.search(said, done.err, re.MULTILINE)
    assert re.fullmatch(r"loss 0\.\d{5}, base rate 0\.\d{5}", found["validation"])
    assert re.search(r"info learning from \d+ games \([\d,]+ rows an epoch\), [\d,]+ param", done.err)
    assert "\x1b" not in done.out + done.err

    plan = tape("embed", "selfplay", "--tower", "critic/best", "--dry-run", "--json")
    facts = json.loads(plan.out)
    assert (facts["rows"], facts["D"], facts["bytes"], facts["sessions"]) == (4800, 16, 4800 * 32, 2)
    assert facts["seconds"] > 0
    assert not list(here.rglob("embeddings*"))
    said = tape("embed", "selfplay", "--tower", "critic/best", "--dry-run").out
    assert re.search(r"D = 16\n4,800 rows of 2 sessions: 154 kB; at [\d,]+ rows/s, about 0:0\d", said)

    halves = [
        json.loads(tape("embed", "selfplay", "--tower", "critic/best", "--shard", f"{i}/2", "--chunk-rows",
                        "1000", "--json").out)
        for i in (1, 2)
    ]  # fmt: skip
    assert [[line["status"] for line in half["sessions"]] for half in halves] == [
        ["waiting"] * 2,
        ["made"] * 2,
    ]
    assert halves[0]["model_sha"] == facts["model_sha"]
    again = tape("embed", "selfplay", "--tower", "critic/best")
    assert again.out.count("already complete") == 2

    probe = (
        "critic", "train", "--config", "critic.toml", "--use-embeddings", "--tower", "critic/best",
        "--out",
    )  # fmt: skip
    done = tape(*probe, "probe", "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["best"], facts["ended"]) == (str(here / "probe/best"), "all steps are made")
    assert facts["val_auroc"].keys() == {"4096", "8192"}
    assert facts["parts"]["val"]["runs"] > 0
    assert set(sys.path) - set(before) <= {str(here)}


def test_one_bad_session_does_not_stop_embed(tape: Tape, here: Path) -> None:
    pytest.importorskip("torch")
    from tape2048.torch.tower import Tower, TowerConfig

    save_tower(here / "tower", Tower(TowerConfig(dim=4, layers=1, heads=1, ffn=4)))
    bad, good = sorted((here / "selfplay").iterdir())
    (bad / "metadata.db").write_bytes(b"none")
    done = tape("embed", "selfplay", "--tower", "tower")
    assert done.code == 1
    assert f"failed: {bad}" in done.out
    assert (good / "embeddings.json").exists()
    facts = tape("embed", "selfplay", "--tower", "tower", "--json").json
    assert [line["status"] for line in facts["sessions"]] == ["there"]
    assert [line["path"] for line in facts["failed"]] == [str(bad)]
    alone = tape("embed", bad, "--tower", "tower")
    assert alone.code == errors.error_class(facts["failed"][0]["error"]).exit_code > 1


def test_shares_by_rank(tape: Tape, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from tape2048.torch.tower import Tower, TowerConfig

    save_tower(here / "tower", Tower(TowerConfig(dim=4, layers=1, heads=1, ffn=4)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, status in (("1", "waiting"), ("0", "made")):
        monkeypatch.setenv("RANK", rank)
        done = tape("embed", "selfplay", "--tower", "tower", "--chunk-rows", "500", "--json")
        assert {line["status"] for line in json.loads(done.out)["sessions"]} == {status}
    monkeypatch.setenv("RANK", "2")
    assert tape("embed", "selfplay", "--tower", "tower").code == errors.ConfigError.exit_code


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_example_has_the_defaults(kind: type[LearningConfig]) -> None:
    file = CHECKOUT / EXAMPLES[kind]
    assert file.read_text() == example_toml(kind), "run: make generate"
    assert load_critic_config(kind, file) == kind()
    assert max(len(line) for line in file.read_text().splitlines()) <= 100


def test_print_config_is_a_configuration(tape: Tape, here: Path) -> None:
    done = tape("critic", "train", "--config", "critic.toml", "--where", 'model = "a\\b"', "--print-config")
    assert done.code == 0
    values = tomllib.loads(done.out)
    assert set(values) == set(CriticConfig.__struct_fields__)
    assert (values["thresholds"], values["where"], values["batch_rows"]) == (
        "4096 8192",
        'model = "a\\b"',
        128,
    )
    (here / "again.toml").write_text(done.out)
    assert tape("critic", "train", "--config", "again.toml", "--print-config").out == done.out
    assert tape("critic", "train", "--print-config").out == example_toml(CriticConfig)


def test_flags_count_before_the_file(here: Path) -> None:
    flags: dict[str, object] = {"per_run": "off", "pos_weight": "1.5 2", "batch_rows": None}
    found = load_critic_config(CriticConfig, here / "critic.toml", flags)
    assert (found.per_run, found.weights, found.batch_rows) == (None, (1.5, 2.0), 128)
    assert found.tiles == (4096, 8192)


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("batchrows = 3", (), r"critic.toml:1: found 'batchrows'.*nearest is 'batch_rows'"),
        ("x = 1\n\nuse_embedings = true", (), "nearest is"),
        ('\nteacher = "a"', (), r"critic.toml:2: 'teacher' was removed: `targets` names a column"),
        ("batch_rows = 0", (), "batch_rows: found 0, expected a whole number of at least 1"),
        ('batch_rows = "many"', (), "found 'many'"),
        ("thresholds = []", (), "thresholds"),
        ("thresholds = [8192, 4096]", (), "ascending"),
        ("pos_weight = [1, 2]", (), "each of 3 thresholds"),
        ('pos_weight = "1 2 x"', (), "none, dataset"),
        ("hidden = 0", (), "hidden"),
        ("use_embeddings = 1", (), "true or false"),
        ("[section]\nx = 1", (), "'section'"),
        ("seed = ", (), "malformed TOML"),
        ("", ("--epochs", "0"), "--epochs: found '0'"),
        ("", ("--device", "GPU!"), "auto, cpu, cuda or cuda:N"),
        ("", ("--val-share", "1.5"), "--val-share"),
        ("", ("--config", "none.toml"), "critic train --print-config` prints a sample"),
    ],
)
def test_what_cannot_be_is_refused(
    tape: Tape, tmp_path: Path, text: str, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "critic.toml").write_text(text)
    done = tape("critic", "train", "--config", "critic.toml", *flags)
    assert done.code == errors.ConfigError.exit_code, done.err
    assert re.search(said, done.err), done.err
    assert not (tmp_path / "critic").exists()


@pytest.mark.parametrize("package", ["torch", "safetensors"])
@pytest.mark.parametrize("args", [("critic", "train"), ("embed", "selfplay", "--tower", "towers:make")])
def test_without_the_extra_it_is_named(
    tape: Tape, here: Path, monkeypatch: pytest.MonkeyPatch, package: str, args: tuple[str, ...]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more)
    )
    done = tape(*args)
    assert done.code == errors.MissingPackageError.exit_code
    assert f"{package} is not installed" in done.err
    assert "pip install 'tape2048[critic]'" in done.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--tower", "nowhere"), errors.MissingPathError.exit_code, "no such file"),
        (("--tower", "selfplay"), errors.ModelError.exit_code, "neither config.json nor critic.json"),
        (("--tower", "no_module_here:f"), errors.ConfigError.exit_code, "no module 'no_module_here'"),
        (("--tower", "x:y", "--shard", "0/2"), 2, "I from 1 to N"),
        (("--tower", "x:y", "--shard", "half"), 2, "expected I/N"),
        (("--tower", "x:y", "--pooling", "max"), 2, "max"),
        ((), 2, "--tower"),
    ],
)
def test_embed_refuses(tape: Tape, here: Path, args: tuple[str, ...], code: int, said: str) -> None:
    pytest.importorskip("torch")
    done = tape("embed", "selfplay", *args)
    assert done.code == code, done.err
    assert said in done.err
    assert done.out == ""


def test_embed_names_what_is_no_session(tape: Tape, here: Path) -> None:
    pytest.importorskip("torch")
    from tape2048.torch.tower import Tower, TowerConfig

    save_tower(here / "tower", Tower(TowerConfig(dim=4, layers=1, heads=1, ffn=4)))
    (here / "nothing").mkdir()
    assert tape("embed", "nothing", "--tower", "tower").code == errors.EmptyCorpusError.exit_code
    beside = tape("embed", "nothing", "selfplay", "--tower", "tower", "--dry-run")
    assert beside.code == 0
    assert "nothing: skipped, because it has no sessions" in beside.err
    assert tape("embed", "nowhere", "--tower", "tower").code == errors.MissingPathError.exit_code
    missing = tape("embed", "selfplay", "--tower", "tower", "--device", "cuda:77")
    assert missing.code == errors.ConfigError.exit_code
    assert "cuda:77" in missing.err


def progress(**changes: Any) -> Any:
    found = {"epoch": 1.2, "loss": 0.34567, "rows_per_s": 4321.0, "data_wait": 0.012, "val_loss": 0.31}
    found |= {"val_base_loss": 0.4, "val_auroc": {"8192": 0.91, "32768": None}, "best_step": 100, **changes}
    return TrainingProgress("steps", 120, 1000, found["rows_per_s"] / 1024, 65.0, found)


def test_the_panel_tells_how_it_stands() -> None:
    from rich.console import Console

    from tape2048_tools.commands.critic.train_critic import critic_panel

    view = critic_panel(CriticConfig())
    drawn = view.describe(progress()).table()
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(drawn)
    text = console.export_text()
    for said in ("120 of 1,000 steps", "1.20", "4.32k rows/s", "1.2% waiting for data", "1:05", "3:28 left",
                 "0.34567", "best at step 100", "8192 0.9100, 32768 -"):  # fmt: skip
        assert said in text, text
    assert view.describe(progress(val_loss=None, rows_per_s=0.0)).table().row_count == 4


def test_a_line_tells_how_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    from tape2048_tools.commands.critic.train_critic import critic_panel

    for quiet in (True, False):
        with critic_panel(CriticConfig(), quiet=quiet) as view:
            view._next = min(view._next, 0.0 if not quiet else view._next)
            view.progress(progress())
            view.event("an event")
    line, event = capsys.readouterr().err.splitlines()
    assert "learned 120 of 1,000 steps, 4.32k rows/s, 1.2% waiting for data, 1:05, 3:28 left" in line
    losses = "loss 0.34567, validation loss 0.31000, base rate 0.40000"
    assert f"epoch 1.20, {losses}, best at step 100, AUROC 8192 0.9100" in line
    assert event.endswith(" info an event")
