"""Blocks worked on by many threads."""
