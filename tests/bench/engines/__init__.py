"""Public engines of 2048, played by ``tape2048 arena`` beside the players here.

Their sources and programs stay outside of the repository, in ``.peers/engines``. The adapters here speak the
protocol of ``docs/reference/engines.md``.
"""
