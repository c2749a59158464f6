"""Commands for runs, packs and data sets."""
