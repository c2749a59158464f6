"""The viewer in the browser, and the report in one file."""
