"""Public engines of 2048, played by ``tape2048 arena`` beside the players here.

Their sources stay outside of the repository, in ``.peers/engines``. ``build.sh`` builds an adapter of each,
which speaks the protocol of ``docs/reference/engines.md``.
"""
