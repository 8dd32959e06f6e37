"""Reading and writing files: OME-Zarr, TIFF and the formats of ITK."""
