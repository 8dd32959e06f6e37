"""Write the tiles of a mosaic grid as OME-TIFF: MOSAIC FOLDER."""

import sys
from pathlib import Path

from tile_writers import tiles_of, write_ome_tiff

from octane.store.image import open_image

image, folder = open_image(Path(sys.argv[1])), Path(sys.argv[2])
folder.mkdir(parents=True)
for (row, column), voxels in tiles_of(image).items():
    write_ome_tiff(folder / f"r{row}_c{column}", voxels, image.grid.spacing)
