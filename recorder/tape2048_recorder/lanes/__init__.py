"""Games in lockstep (lanes), for players that choose moves for thousands of boards at once."""
