"""Files: durable writes, untrusted reads, drafts, SQLite, checksums, bulk reads."""
