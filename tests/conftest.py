"""Settings of the whole suite."""

import gc
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings

# A kernel compiles at its first call, which no deadline for a single example allows for.
settings.register_profile("tape2048", settings(), deadline=None)
settings.load_profile("tape2048")

#: Files that take from 15 s to a minute. They come first: one that began last would be waited for alone.
_LONG_FILES = (
    "recorder/fleet/test_ray.py", "recorder/fleet/test_fleet.py", "recorder/test_faults.py",
    "sdk/torch/test_nodes.py", "recorder/players/test_ntuple_player.py", "tools/sessions/test_jobs.py",
    "recorder/lanes/test_batch_recording.py", "recorder/simulation/test_simulation.py",
    "recorder/test_crash_sweep.py", "tools/viewer/test_pages.py", "sdk/torch/test_training.py",
    "tools/commands/test_player.py", "tools/commands/test_record.py",
    "test_bench.py", "recorder/fleet/test_thousand_nodes.py",
    "tools/commands/test_critic_oracle.py", "recorder/ntuple_training/test_pruning.py",
    "recorder/ntuple_training/test_trainer.py", "recorder/test_leases.py", "recorder/test_surroundings.py",
    "recorder/lanes/test_table.py", "recorder/daemon/test_watch.py",
    "tools/commands/test_train_player.py", "fuzz/test_fuzz_formats.py", "sdk/test_tape_corpus.py",
    "sdk/test_frameworks.py", "sdk/torch/test_example.py", "sdk/ntuple/test_shipped_network.py",
    "test_architecture.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Hear the signals that tests send; start workers of pytest-xdist one by one on a new checkout.

    To rewrite the assertions of tests takes each 12 s, unless it comes later and reads what the first one has
    written.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:  # in the background, and under nohup
            signal.signal(number, handler)
    name = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if not (Path(__file__).parent / "tools/views/__pycache__").exists():
        time.sleep(2 * int(name.removeprefix("gw")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take long first if several processes share the files; else the order stays."""
    if not hasattr(config, "workerinput"):
        return
    here = Path(__file__).parent
    place = {here / name: place for place, name in enumerate(_LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> None:
    """Leave what earlier files loaded out of the collections that tests ask for: half a second each."""
    gc.collect()
    gc.freeze()
