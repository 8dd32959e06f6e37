"""Reading and writing files: OME-Zarr, TIFF and the formats of ITK."""

# Before zarr, which imports CuPy if it is installed: sets how.
import octane.core.arrays  # noqa: F401
