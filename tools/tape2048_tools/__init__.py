"""The ``tape2048`` command and its subcommands: they look after sessions, and hold no format of their own."""
