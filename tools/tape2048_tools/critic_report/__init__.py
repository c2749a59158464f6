"""The examination of a critic: its inputs, and its result as tables."""
