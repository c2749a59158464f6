"""The configuration of a recorder: schema, loading, checks, retention."""
