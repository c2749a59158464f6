"""Fleets: recorders on many nodes that share a seed by leases, and ship their sessions to one store."""
