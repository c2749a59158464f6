"""Text and tables on the standard streams, and shared command line options."""
