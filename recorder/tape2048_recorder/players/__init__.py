"""Players: the registry, the built-in policies, batched players of the user, their evaluation."""
