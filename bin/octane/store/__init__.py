"""OME-Zarr and ITK files, mosaic grids and sections."""
