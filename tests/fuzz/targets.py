"""Every format that is fuzzed, by its name."""

from dataset_target import DATASET
from run_targets import TARGETS as RUN_TARGETS
from set_targets import TARGETS as SET_TARGETS
from tape_target import TAPE

__all__ = ["ALL"]

ALL = {**RUN_TARGETS, **SET_TARGETS, DATASET.name: DATASET, TAPE.name: TAPE}

if __name__ == "__main__":
    print(*ALL)  # noqa: T201 - make fuzz asks
