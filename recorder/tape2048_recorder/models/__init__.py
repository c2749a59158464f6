"""Batched players over the models of other frameworks; each module is named after its framework."""
