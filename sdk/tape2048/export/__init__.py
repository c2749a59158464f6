"""Rows and runs for other tools: Parquet, Arrow, JSON lines."""
