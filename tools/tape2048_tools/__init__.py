"""The ``tape2048`` command and its subcommands."""

import sys

if sys.platform == "win32":
    try:
        import tape2048  # noqa: F401 - it says why it does not load
    except ImportError as error:
        sys.exit(f"tape2048: error: {error}")
