"""The viewer of recordings in a browser, and the report in one file."""
