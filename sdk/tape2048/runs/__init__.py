"""Runs: games with their moves, and one module for each format that holds them.

A path comes in (:func:`open_source`), as runs of one type (:class:`Run`), and leaves as a file of another
format (:func:`convert`) or as a table (:func:`export`). Start with ``registry.py``, the table of formats, and
``conversion.py``; each other module is a format, with ``read`` and ``write``.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.runs.a2pack import (
        EntryInfo as EntryInfo,
        PackReader as PackReader,
        PackStats as PackStats,
        PackWriter as PackWriter,
        RunSlice as RunSlice,
    )
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
    from tape2048.runs.auditing import Audit as Audit, AuditCheck as AuditCheck, audit as audit
    from tape2048.runs.conversion import (
        Converted as Converted,
        convert as convert,
        open_source as open_source,
    )
    from tape2048.runs.dataset import (
        Built as Built,
        Dataset as Dataset,
        append_dataset as append_dataset,
        build_dataset as build_dataset,
        write_view as write_view,
    )
    from tape2048.runs.exports import (
        export as export,
        record_batches as record_batches,
        run_file_table as run_file_table,
        write_table as write_table,
    )
    from tape2048.runs.files import Found as Found, read_run_file as read_run_file, scan as scan
    from tape2048.runs.jsonl import run_line as run_line, step_lines as step_lines
    from tape2048.runs.pack48 import merge_pack48 as merge_pack48
    from tape2048.runs.packdat import DataPack as DataPack
    from tape2048.runs.repack import Repacked as Repacked, repack_session as repack_session
    from tape2048.runs.run import (
        Run as Run,
        RunMeta as RunMeta,
        RunRows as RunRows,
        SourceRun as SourceRun,
        check_rules as check_rules,
    )
    from tape2048.runs.sessions import session_run as session_run, write_session as write_session
    from tape2048.runs.verify import verify_dataset as verify_dataset
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
