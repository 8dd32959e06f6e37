"""OME-Zarr and ITK files, mosaic grids and sections."""

from octane.core.packages import defer

# It would load all its codecs, each of which takes as long as a small file's work.
defer("numcodecs")
