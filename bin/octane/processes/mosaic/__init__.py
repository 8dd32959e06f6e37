"""MOSAIC: tiles in files, written as mosaic grids."""
