"""Worker processes: the loops of compiled and of batched players."""
