"""The subcommands of ``tape2048``."""
