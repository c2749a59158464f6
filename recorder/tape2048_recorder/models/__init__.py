"""Batched players over the models of other frameworks. Each module has its framework's name."""
