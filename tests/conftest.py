"""Settings of the whole suite."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import settings

# A kernel compiles at its first call, which no deadline for a single example allows for.
settings.register_profile("tape2048", settings(), deadline=None)
settings.load_profile("tape2048")

#: Files that take from 20 s to minutes. They come first: one that began last would be waited for alone.
_LONG_FILES = (
    "recorder/test_faults.py",
    "recorder/players/test_ntuple_player.py",
    "recorder/simulation/test_simulation.py",
    "recorder/test_crash_sweep.py",
    "recorder/lanes/test_table.py",
    "recorder/lanes/test_batch_recording.py",
    "recorder/workers/test_worker_sweep.py",
    "tools/viewer/test_pages.py",
    "sdk/torch/test_training.py",
    "tools/commands/test_player.py",
    "bench/test_training_speed.py",
    "tools/commands/test_train_player.py",
    "tools/commands/test_record.py",
    "fuzz/test_fuzz_formats.py",
    "sdk/test_tape_corpus.py",
    "sdk/torch/test_example.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take long first; the order within a file stays."""
    here = Path(__file__).parent
    place = {here / name: place for place, name in enumerate(_LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> None:
    """Leave what earlier files loaded out of the collections that tests ask for: half a second each."""
    gc.collect()
    gc.freeze()
