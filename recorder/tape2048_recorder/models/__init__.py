"""Batched players for models of other frameworks, one module per framework."""
