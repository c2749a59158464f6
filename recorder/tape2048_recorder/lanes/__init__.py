"""Many games in lockstep, for players that choose moves for thousands of boards at once.

:mod:`~tape2048_recorder.lanes.table` holds the lanes of one player and steps them;
:mod:`~tape2048_recorder.lanes.kernels` is what happens on the boards, compiled;
:mod:`~tape2048_recorder.workers.batch_loop` is the worker process that plays this way.
"""
