"""Files: durable writes, untrusted reads, staging directories, SQLite, checksums, bulk reads."""
