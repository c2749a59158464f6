"""Runs: one game with its moves, in memory and in the run formats A2T1, a2run2, JSON lines and Parquet."""
