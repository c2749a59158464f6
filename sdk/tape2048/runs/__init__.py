"""Runs: one game with its moves, in memory and in the run formats A2T1, a2run2, JSON lines and Parquet.

- `Run`: one game: boards, moves, branch values.
- `RunMeta`: metadata of a run.
- `RunRows`: the steps of several runs as one source of rows.
- `read_run`: reads or maps an A2T1 file.
- `parse_run`: parses the bytes of an A2T1 file.
- `run_bytes`: encodes a run as an A2T1 file.
- `write_run`: writes a new A2T1 file.
- `shard_path`: makes a path by day or by UUID for a new run file.
- `RunV2`: a run with branch values, as a2run2 files hold it.
- `StepV2`: one step of a `RunV2` as an object.
- `Move`: the four moves.
- `Branch`: one move of a step, with its value.
- `normalize`: normalizes expected values per step.
- `Found`: a file of a directory, with its run or its error.
- `scan`: reads every run file below a directory.
- `read_run_file`: reads a file of one run in either format.
- `run_line`: encodes a run as one line of JSON.
- `step_lines`: encodes a run as one line of JSON a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.runs.a2run import parse_run as parse_run
    from tape2048.runs.a2run import read_run as read_run
    from tape2048.runs.a2run import run_bytes as run_bytes
    from tape2048.runs.a2run import shard_path as shard_path
    from tape2048.runs.a2run import write_run as write_run
    from tape2048.runs.a2run2 import Branch as Branch
    from tape2048.runs.a2run2 import Move as Move
    from tape2048.runs.a2run2 import RunV2 as RunV2
    from tape2048.runs.a2run2 import StepV2 as StepV2
    from tape2048.runs.a2run2 import normalize as normalize
    from tape2048.runs.files import Found as Found
    from tape2048.runs.files import read_run_file as read_run_file
    from tape2048.runs.files import scan as scan
    from tape2048.runs.jsonl import run_line as run_line
    from tape2048.runs.jsonl import step_lines as step_lines
    from tape2048.runs.run import Run as Run
    from tape2048.runs.run import RunMeta as RunMeta
    from tape2048.runs.run import RunRows as RunRows
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        run="Run RunMeta RunRows",
        a2run="read_run parse_run run_bytes write_run shard_path",
        a2run2="RunV2 StepV2 Move Branch normalize",
        files="Found scan read_run_file",
        jsonl="run_line step_lines",
    )
