"""Checks of the machine, and systemd units."""
