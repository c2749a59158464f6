"""Runs: one game with its moves, in memory and in the run formats A2T1, a2run2, JSON lines and Parquet."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.runs.a2run import (
        parse_run as parse_run,
        read_run as read_run,
        run_bytes as run_bytes,
        shard_path as shard_path,
        write_run as write_run,
    )
    from tape2048.runs.a2run2 import (
        Branch as Branch,
        Move as Move,
        RunV2 as RunV2,
        StepV2 as StepV2,
        normalize as normalize,
    )
    from tape2048.runs.files import Found as Found, read_run_file as read_run_file, scan as scan
    from tape2048.runs.jsonl import run_line as run_line, step_lines as step_lines
    from tape2048.runs.run import (
        Run as Run,
        RunMeta as RunMeta,
        RunRows as RunRows,
        check_rules as check_rules,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
