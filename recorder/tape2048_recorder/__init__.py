"""The recorder: plays 2048 on every core and publishes finished sessions.

:mod:`.recorder` runs one life. Its :mod:`.daemon` supervises :mod:`.workers`, which play :mod:`.players` in
the compiled loops of :mod:`.game` and :mod:`.lanes`; :mod:`.recording` writes and publishes sessions,
:mod:`.status` reports, :mod:`.replay` verifies games. Nothing
heavier than NumPy is imported before a worker or a replay needs the compiler.
"""
