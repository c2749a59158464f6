"""Players: the registry, the built-in players, batched players and engines."""
