"""Geometry of a subject: grids from grids, without reading a voxel."""
