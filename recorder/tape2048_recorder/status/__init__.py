"""Status reports: signals, status file, metrics, notifications, control of a running recorder."""
