"""One module for each subcommand of ``tape2048``. Each has it as ``command``."""
