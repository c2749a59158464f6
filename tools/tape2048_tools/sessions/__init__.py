"""Sessions for people: summaries, roots, retention."""
