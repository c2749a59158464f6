"""The recorder's configuration: schema, loading with checks, retention."""
