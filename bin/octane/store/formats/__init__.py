"""NIfTI, MHA, NRRD, TIFF and OME-Zarr archives."""
