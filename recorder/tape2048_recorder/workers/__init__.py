"""Worker processes: the loop of compiled players and the loop of batched players."""
