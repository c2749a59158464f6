"""Communication between the daemon and its workers."""
