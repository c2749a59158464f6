"""Progress of long jobs on standard error, and their summaries."""
