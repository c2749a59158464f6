"""Games in lockstep, for players that choose moves for thousands of boards at once.

:mod:`~tape2048_recorder.lanes.table` holds the lanes of one player and steps them with the compiled
:mod:`~tape2048_recorder.lanes.kernels`, in the worker process of
:mod:`~tape2048_recorder.workers.batch_loop`.
"""
