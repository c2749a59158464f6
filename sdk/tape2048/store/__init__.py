"""Rows and runs of many sessions in memory: storage, filters, phases, splits, views. Internal."""
