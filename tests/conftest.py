"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# A kernel compiles at its first call, which no deadline for a single example allows for.
settings.register_profile("tape2048", settings(), deadline=None)
settings.load_profile("tape2048")
