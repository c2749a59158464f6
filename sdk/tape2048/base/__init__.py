"""Helpers of all packages: threads, machine resources, text, findings, drawn boards."""
