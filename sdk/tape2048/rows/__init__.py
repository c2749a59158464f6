"""Storage of the rows and runs of many sessions: filters, phases, splits, views. Internal."""
