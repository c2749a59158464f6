"""Sessions being written: journal, drafts, publishing, recovery."""
