"""The status file, metrics, notifications to systemd, signals, and the control of a running recorder."""
