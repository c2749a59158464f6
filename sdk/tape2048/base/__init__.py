"""Helpers of all packages, without knowledge of 2048: threads, machine resources, text, findings."""
