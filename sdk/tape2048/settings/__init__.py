"""Settings as data: fields of a configuration Struct, read from and written to any source."""
