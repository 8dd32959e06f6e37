"""Reconstruction steps for serial-section OCT and other tiled 3-D microscopy in OME-Zarr."""

__version__ = "0.1.0"
