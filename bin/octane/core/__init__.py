"""Errors, grids, arrays, files, timing and records."""
