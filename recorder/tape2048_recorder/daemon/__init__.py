"""The daemon: one loop over workers, signals, publishing and the clock, and its parts."""
