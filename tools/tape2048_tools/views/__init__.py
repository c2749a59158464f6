"""Live panels and logs of long jobs."""
