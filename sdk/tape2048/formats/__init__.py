"""Layouts and the registry of the formats of runs."""
