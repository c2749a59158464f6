"""A pytest plugin that removes what only Linux has from the standard library, as on macOS.

::

    python -m pytest -p tests.without_linux tests/sdk/test_sources.py
"""

import fcntl
import mmap
import os
import signal

_ONLY_LINUX = {
    os: (
        "O_DIRECT", "copy_file_range", "eventfd", "memfd_create", "pidfd_open", "posix_fadvise",
        "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice", "setns", "unshare",
    ),
    fcntl: ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"),
    mmap: ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MAP_POPULATE"),
    signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "sigtimedwait", "sigwaitinfo"),
}  # fmt: skip

for _module, _names in _ONLY_LINUX.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
