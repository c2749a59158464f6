"""Looking at recordings in a browser, and in one file."""
