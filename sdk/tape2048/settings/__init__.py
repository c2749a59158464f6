"""Settings as data: fields of a configuration Struct, TOML with line numbers, sample files."""
