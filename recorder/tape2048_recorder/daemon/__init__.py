"""The daemon: its loop, its instance lock, the supervision of workers, and live weights."""
