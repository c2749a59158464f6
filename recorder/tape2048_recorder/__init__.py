"""The recorder: plays 2048 on every core and leaves finished sessions.

Spawns and generator (:mod:`.engine`, :mod:`.rng`), players (:mod:`.players`), the compiled loop
(:mod:`.game_loop`), and around it the processes: :mod:`.recorder` runs one life, :mod:`.daemon` decides,
:mod:`.supervisor` keeps :mod:`.worker` processes, :mod:`.recording` gives out rows, :mod:`.partial` and
:mod:`.journal` hold what is being written, :mod:`.publish` makes sessions of it. Nothing heavier than
NumPy is imported before a worker or a replay needs the compiler.
"""
