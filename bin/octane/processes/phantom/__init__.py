"""PHANTOM: a synthetic subject."""
