"""Command line options that are generated from settings, and sample files of the settings."""
