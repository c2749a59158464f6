"""Games in lockstep, for players that choose moves for thousands of boards at once."""
