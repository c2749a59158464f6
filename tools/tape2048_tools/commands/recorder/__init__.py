"""Commands for the recorder."""
