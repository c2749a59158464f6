"""Live panels and logs of long jobs; games on a terminal."""
