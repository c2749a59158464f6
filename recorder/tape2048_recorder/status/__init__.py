"""What a recorder reports and hears: status file, metrics, notifications, signals, control."""
