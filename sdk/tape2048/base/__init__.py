"""Helpers of all rooms, without knowledge of 2048: threads, machine resources, text, findings."""
