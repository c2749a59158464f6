"""Communication between the daemon and its child processes, their set-up, and the detection of hung ones."""
