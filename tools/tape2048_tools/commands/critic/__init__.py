"""Commands for critics."""
