"""``python -m tape2048`` is the command ``tape2048``."""

from tape2048_tools.cli import main

if __name__ == "__main__":
    main()
