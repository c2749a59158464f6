"""Batched players over the models of other frameworks. Each module is named after its framework."""
