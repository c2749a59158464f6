"""Settings of the whole suite."""

import gc
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings
from tests.skips import (  # noqa: F401 - hooks
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)

# A kernel compiles at its first call, which no deadline for a single example allows for.
settings.register_profile("tape2048", settings(), deadline=None)
settings.load_profile("tape2048")

#: Files that take longest. They come first: one that began last would be waited for alone.
_LONG_FILES = (
    "recorder/test_faults.py", "recorder/test_reference_corpus.py", "sdk/torch/test_nodes.py",
    "sdk/torch/test_training.py", "sdk/test_frameworks.py", "sdk/torch/test_example.py",
    "recorder/test_crash_sweep.py", "tools/viewer/test_pages.py", "tools/commands/test_record.py",
    "tools/commands/test_train_player.py",
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
