#!/usr/bin/env python3
"""Data of docs/tutorial.md: a brain cut into sections of overlapping tiles, and the comparison.

tools/tutorial.py cut FOLDER                        makes FOLDER/tiles and FOLDER/original.nii.gz
tools/tutorial.py compare FOLDER VOLUME PICTURE     draws both and prints how well they agree

The brain is the MNI152 T1 template in the package nilearn. Its voxels are multiplied by a smooth
field, like that of a coil or a lens, so that the truth of the correction is known.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np
import SimpleITK as sitk
import tifffile

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "bin"))

from octane.core.filters import gaussian
from octane.pictures.pictures import comparison, grey_scale
from octane.store.image import open_image

TEMPLATE = "datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
VOXEL_UM = 1000.0
TISSUE = 40
"""Grey level of the template above which a voxel is brain."""
SECTIONS = 3
"""Number of sections."""
THICKNESS = 62
"""Planes from one section to the next."""
DEPTH = 64
"""Planes imaged of each section: more than its thickness."""
SHAPE = ((SECTIONS - 1) * THICKNESS + DEPTH, 232, 196)
"""Voxels used of the template: all but a border, so that voxels of 2 mm divide each tile."""
TILE = (96, 80)
"""Voxels of a tile in y and x."""
OVERLAP = 0.25
"""Fraction of a tile that it shares with its neighbour."""


def template() -> np.ndarray:
    """Read the template's voxels, (z, y, x), from nilearn's folder without importing nilearn."""
    package = importlib.util.find_spec("nilearn")
    if package is None or package.origin is None:
        raise SystemExit(
            "error: nilearn is not installed; run "
            "pip install --no-deps --require-hashes -r requirements/tutorial.txt"
        )
    image = sitk.ReadImage(str(Path(package.origin).parent / TEMPLATE))
    planes, rows, columns = (slice(n) for n in SHAPE)
    # The front of the brain comes first along y, so that it is at the top of pictures.
    return sitk.GetArrayFromImage(image)[planes, rows, columns][:, ::-1]


def field(shape: tuple[int, ...]) -> np.ndarray:
    """Smooth factor between about 0.6 and 1.7 at every voxel."""
    z, y, x = np.ogrid[tuple(slice(-1, 1, n * 1j) for n in shape)]
    return np.exp(0.3 * np.sin(1.5 * x + 0.4) + 0.25 * np.cos(2 * y - 0.6) - 0.2 * z * x)


def tiles(section: np.ndarray) -> list[list[np.ndarray]]:
    """Overlapping tiles of a section (z, y, x), by row and column; the last ones are smaller."""
    cuts = []
    for size, voxels in zip(TILE, section.shape[1:], strict=True):
        pitch = round(size * (1 - OVERLAP))
        starts = range(0, voxels - (size - pitch), pitch)
        cuts.append([slice(start, min(start + size, voxels)) for start in starts])
    return [[section[:, rows, columns] for columns in cuts[1]] for rows in cuts[0]]


def cut(folder: Path) -> None:
    """Write the tiles of all sections as OME-TIFF, and the original brain."""
    brain = template()
    imaged = np.rint(brain * field(brain.shape)).astype(np.uint16)
    (folder / "tiles").mkdir(parents=True, exist_ok=True)
    sizes = {f"PhysicalSize{axis}": VOXEL_UM for axis in "ZYX"}
    for number in range(SECTIONS):
        planes = slice(number * THICKNESS, number * THICKNESS + DEPTH)
        for row, tiled in enumerate(tiles(imaged[planes])):
            for column, voxels in enumerate(tiled):
                name = f"section_{number + 1:02d}_row_{row}_column_{column}.ome.tif"
                metadata = {"axes": "ZYX", **sizes}
                tifffile.imwrite(folder / "tiles" / name, voxels, ome=True, metadata=metadata)
    sitk.WriteImage(sitk.GetImageFromArray(brain), str(folder / "original.nii.gz"))


def compare(folder: Path, volume: Path, picture: Path) -> None:
    """Compare a result with the brain on the result's grid, and draw both."""
    original = sitk.GetArrayFromImage(sitk.ReadImage(str(folder / "original.nii.gz")))
    image = open_image(volume)
    scale, first = np.divide(image.grid.spacing, VOXEL_UM), np.divide(image.grid.origin, VOXEL_UM)

    def on_grid(voxels: np.ndarray) -> np.ndarray:
        smooth = sitk.GetImageFromArray(gaussian(voxels.astype(np.float32), (scale[0] - 1) / 2))
        resample = sitk.ResampleImageFilter()
        resample.SetSize(image.grid.shape[::-1])
        resample.SetOutputSpacing(scale[::-1].tolist())
        resample.SetOutputOrigin((first - 0.5)[::-1].tolist())
        return sitk.GetArrayFromImage(resample.Execute(smooth))

    truth = on_grid(original)
    tissue = truth > TISSUE
    result = image.array.opened[:]
    shaded = original * field(original.shape)
    shown = {"as imaged": on_grid(shaded), "result": result}
    for name, values in shown.items():
        # N4 does not determine the scale.
        values = shown[name] = values * (truth[tissue].mean() / values[tissue].mean())
        correlation = np.corrcoef(values[tissue], truth[tissue])[0, 1]
        rms = np.sqrt(np.mean((values - truth)[tissue] ** 2)) / truth[tissue].mean()
        print(f"{name + ':':10} correlation {correlation:.3f}, rms difference {100 * rms:.1f} %")
    plane = len(truth) // 2
    section, depth = divmod(round(first[0] - 0.5 + scale[0] * plane), THICKNESS)
    imaged = np.rint(shaded[section * THICKNESS + depth])
    mosaic = np.block(tiles(imaged[None]))[0]
    step = int(scale[1])
    planes = [("mosaic grid", mosaic[::step, ::step])]
    planes += [(name, values[plane]) for name, values in (shown | {"original": truth}).items()]
    greys = [grey_scale([planes[0][1]])] + [grey_scale(image for _, image in planes[1:])] * 3
    slices = [(*named, grey) for named, grey in zip(planes, greys, strict=True)]
    picture.write_bytes(comparison([(slices, image.grid.spacing[1:])]))


def main() -> None:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("cut", ["folder"]), ("compare", ["folder", "volume", "picture"])):
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word, type=Path)
    given = vars(parser.parse_args())
    {"cut": cut, "compare": compare}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
