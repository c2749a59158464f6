"""The machine: fitness checks and systemd units."""
