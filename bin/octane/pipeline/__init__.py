"""Blocks processed by many threads."""
