"""One module for each subcommand of ``tape2048``; each has it as ``command``."""
