"""The recorder: plays 2048 on every core and publishes finished sessions.

:mod:`.recorder` runs a recorder from its start to its end. Its :mod:`.daemon` supervises :mod:`.workers`,
which run :mod:`.players` in the compiled loops of :mod:`.game` and :mod:`.lanes`. :mod:`.recording` writes
and publishes sessions, :mod:`.status` reports, and :mod:`.replay` verifies recorded games. No package heavier
than NumPy is imported before a worker or a replay needs the compiler.
"""
