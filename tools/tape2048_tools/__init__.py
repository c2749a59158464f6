"""The ``tape2048`` command and its subcommands."""
