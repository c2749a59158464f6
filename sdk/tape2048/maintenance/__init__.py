"""Care of sessions: validation, merging, removal, quarantine."""
