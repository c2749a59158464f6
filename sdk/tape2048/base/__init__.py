"""Threads, machine resources, text and findings: what every room may use, with no knowledge of 2048."""
