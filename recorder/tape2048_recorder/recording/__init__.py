"""Writing sessions: the journal, partial directories, publishing, and recovery after a crash."""
