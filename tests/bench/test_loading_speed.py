"""Batches, loading and data sets, against C, NumPy, torch and ``cat``: toy sizes in the suite."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.critic.config import CriticConfig
from tape2048.game.rules import boards_to_exps
from tape2048.maintenance.validation import validate_session

from . import batches, corpora, critic, datasets, gathering, loading, tapes, torch_loader
from .figures import Figure
from .floor import ROW_BYTES, Floor, load_floor


def test_the_corpus_that_is_measured_serves_its_rows() -> None:
    corpus = batches.corpus_in_memory(30_000, 100)
    assert len(corpus) == 30_000
    rows = corpus[:]
    found = [batch.copy() for batch in corpus.batches(1000, fields=("row", "tokens", "labels", "run"))]
    numbers = np.concatenate([batch["row"] for batch in found])
    assert sorted(numbers.tolist()) == list(range(30_000))
    np.testing.assert_array_equal(np.concatenate([batch["tokens"] for batch in found]), rows["exps"][numbers])
    run = np.searchsorted(corpus.row_starts, numbers, "right") - 1
    np.testing.assert_array_equal(np.concatenate([batch["run"] for batch in found]), run)
    np.testing.assert_array_equal(
        np.concatenate([batch["labels"] for batch in found]), corpus.run_labels(batches.THRESHOLDS)[run]
    )


@pytest.mark.benchmark(group="batches")
def test_batches(measure: Any, rounds: int, full: bool) -> None:
    how = {
        "rows": batches.ROWS if full else 20_000,
        "large": batches.LARGE_ROWS if full else 40_000,
        "batch": batches.BATCH if full else 512,
    }
    assert all(figure.value > 0 for figure in measure(batches.batch_figures, **how, rounds=rounds))


@pytest.mark.benchmark(group="pool")
@pytest.mark.skipif(shutil.which("cat") is None, reason="no cat")
def test_pool(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    rows, pool_rows = (batches.DISK_ROWS, batches.POOL_ROWS) if full else (20_000, 4_000)
    how = {"rows": rows, "pool_rows": pool_rows, "batch": batches.BATCH if full else 512, "rounds": rounds}
    assert all(figure.value > 0 for figure in measure(batches.pool_figures, tmp_path / "corpus", **how))


@pytest.mark.benchmark(group="labels")
def test_labels(measure: Any, rounds: int, full: bool) -> None:
    found = measure(batches.label_figures, rows=batches.LABEL_ROWS if full else 100_000, rounds=rounds)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="opening")
def test_opening(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    how = {"sessions": batches.SESSIONS if full else 3, "games": batches.SESSION_GAMES if full else 5}
    found = measure(batches.opening_figures, tmp_path / "corpus", **how, rounds=rounds)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.skipif(load_floor() is None, reason="no C compiler")
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_the_floor_gathers_the_rows(row_bytes: int) -> None:
    rows = gathering.random_rows(5000, row_bytes)
    indices = np.random.default_rng(0).integers(0, 5000, 300, dtype=np.uint64)
    out = np.empty(300 * row_bytes, np.uint8)
    Floor(rows.view(f"V{row_bytes}").reshape(-1))(indices, out)
    assert out.tobytes() == rows[indices.astype(np.int64)].tobytes()


@pytest.mark.benchmark(group="gathering")
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_gathering(row_bytes: int, measure: Any, rounds: int, full: bool) -> None:
    how = {"rows": gathering.ROWS if full else 10_000, "batch": gathering.BATCH, "rounds": rounds}
    found = measure(gathering.gather_figures, row_bytes=row_bytes, **how)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="loading")
@pytest.mark.skipif(shutil.which("cat") is None, reason="no cat")
def test_loading(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    size = loading.MEGABYTES * 10**6 if full else 100_000
    how = {"files": loading.FILES, "size": size, "rounds": rounds, "directory": tmp_path}
    assert all(figure.value > 0 for figure in measure(loading.loading_figures, **how))
    assert not list(tmp_path.iterdir())


def test_the_corpus_that_is_measured_serves_its_games() -> None:
    games = tapes.play("random", 50)
    corpus = tapes.corpus_on_tape(games, 3 * len(games.tape))
    numbers = np.random.default_rng(0).permutation(len(corpus))
    expected = boards_to_exps(games.boards[numbers % len(games.tape)])
    np.testing.assert_array_equal(corpus.tokens(numbers), expected)


@pytest.mark.benchmark(group="tapes")
@pytest.mark.skipif(shutil.which("cat") is None, reason="no cat")
def test_tapes(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    games = tapes.play(tapes.PLAYER, tapes.GAMES) if full else tapes.play("random", 200)
    how = {"batch": tapes.BATCH if full else 256, "rounds": rounds}

    def everything() -> list[Figure]:
        return [
            *tapes.batch_figures(games, rows=tapes.ROWS if full else 50_000, **how),
            *tapes.disk_figures(games, rows=tapes.COLD_ROWS if full else 20_000, directory=tmp_path, **how),
        ]

    assert all(figure.value > 0 for figure in measure(everything))


def test_corpora_that_are_made_up_are_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "SESSION_ROWS", 400)
    root = corpora.make_corpus(tmp_path / "corpus", 1000, game_rows=150)
    reports = [validate_session(path) for path in sorted(root.iterdir())]
    assert [(report.rows, report.runs) for report in reports] == [(400, 3), (400, 3), (200, 2)]
    # The outcomes of the games are made up; everything else has to be right.
    messages = [finding.message for report in reports for finding in report.findings]
    assert all("has highest_tile" in message for message in messages), messages


@pytest.mark.benchmark(group="torch")
def test_torch_loader(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    how = {"rows": torch_loader.ROWS, "batch": torch_loader.BATCH, "batches": torch_loader.BATCHES}
    if not full:
        how = {"rows": 20_000, "batch": 100, "batches": 100}
    found = measure(torch_loader.torch_figures, **how, rounds=rounds, directory=tmp_path)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="data set batches")
def test_data_set_batches(
    measure: Any, directory: Path, rounds: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if load_floor() is None:
        pytest.skip("no C compiler for the floor")
    if not full:
        monkeypatch.setattr(datasets, "CALLS", 3)
    found = measure(datasets.gather_figures, directory, rows=20_000_000 if full else 50_000, rounds=rounds)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="data set build")
def test_data_set_build(measure: Any, directory: Path, rounds: int, full: bool) -> None:
    assert measure(datasets.build_figures, directory, runs=2000 if full else 3, rounds=rounds)[0].value > 0


@pytest.mark.benchmark(group="data set opening")
def test_data_set_opening(measure: Any, tmp_path: Path, rounds: int, full: bool) -> None:
    found = measure(datasets.open_figures, tmp_path, rows=20_000_000 if full else 50_000, rounds=rounds)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="critic")
def test_critic(measure: Any, rounds: int, full: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    config = CriticConfig(device="auto")
    how: dict[str, Any] = {"rows": critic.ROWS, "steps": critic.STEPS, "batch": critic.BATCH}
    if not full:
        how = {"rows": 20_000, "steps": 8, "batch": 100}
        config = CriticConfig(device="cpu", batch_rows=64, tower_dim=8, tower_layers=1, tower_heads=1)
    found = measure(critic.critic_figures, **how, rounds=rounds, directory=tmp_path, config=config)
    assert all(figure.value >= 0 for figure in found)
    assert {figure.unit for figure in found} == {"rows/s", "x", "% of a step"}
