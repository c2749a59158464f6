"""Conversion between all formats that hold runs; building of data sets and sessions from runs."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.conversion.auditing import Audit as Audit, AuditCheck as AuditCheck, audit as audit
    from tape2048.conversion.dataset_build import (
        Built as Built,
        append_dataset as append_dataset,
        build_dataset as build_dataset,
        write_view as write_view,
    )
    from tape2048.conversion.pack48 import merge_packs as merge_packs
    from tape2048.conversion.session_runs import (
        Repacked as Repacked,
        repack_session as repack_session,
        session_run as session_run,
        write_session as write_session,
    )
    from tape2048.conversion.sources import SourceRun as SourceRun, open_source as open_source
    from tape2048.conversion.targets import Converted as Converted, convert as convert
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
