"""Files in and out: OME-Zarr, TIFF and those that ITK reads."""
