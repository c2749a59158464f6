"""Every format that is fuzzed, by its name."""

from tests.fuzz.run_targets import TARGETS as RUN_TARGETS
from tests.fuzz.set_targets import TARGETS as SET_TARGETS
from tests.fuzz.tape_target import TAPE

__all__ = ["ALL"]

ALL = {**RUN_TARGETS, **SET_TARGETS, TAPE.name: TAPE}
