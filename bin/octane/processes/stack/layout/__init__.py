"""Sections in the volume, from their metadata."""
