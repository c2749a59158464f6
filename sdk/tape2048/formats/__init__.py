"""The files, to the byte: one module for each format, with its specification as its docstring."""
