"""Speed and peak memory of exporting a store that is larger than the memory it may use.

Stored in benchmarks/results/export.json. ``--quick`` takes a smaller store, and writes to the
scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. The store and one export, 1 GB together,
are written to the scratch folder too, and removed. They are read from the system's cache.
"""

import logging
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import PROJECT, command_line, cores, run_parts, scratch_folder
from _processes import run
from _resample_stores import speckle

from octane.core.geometry import Grid, blocks, vector
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

PARTS = ("formats",)
SHAPE, MEMORY = (160, 1280, 1280), "500MB"
NAMES = {
    "NIfTI": "a.nii",
    "NIfTI, gzip": "a.nii.gz",
    "NRRD": "a.nrrd",
    "MetaImage": "a.mha",
    "OME-TIFF": "a.ome.tif",
    "OME-Zarr 0.4": "a.ome.zarr",
    "OME-Zarr in one file": "a.ozx",
}
WHOLE = """
import sys
import SimpleITK as sitk
import zarr
image = sitk.GetImageFromArray(zarr.open_array(sys.argv[1], path="0", mode="r")[:])
sitk.WriteImage(image, sys.argv[2], useCompression=sys.argv[2].endswith(".gz"))
"""
"""The same with zarr and SimpleITK, which hold all voxels; the geometry is left out."""


def write_store(path: Path, shape: tuple[int, int, int]) -> int:
    """Write a volume of uint16 speckle, and return the bytes of its voxels."""
    level = Level.volume(Grid(shape, vector(10, 10, 10)))
    with create_image(path, [level], "uint16", attributes={"kind": "volume"}) as (writer,):
        block = speckle(level.object_shape).clip(0, 65535).astype(np.uint16)
        for number, region in enumerate(blocks(shape, level.object_shape)):
            # Other planes in each block, or gzip would find the rows of the block before.
            rolled = np.roll(block, 37 * number, 0)
            writer[region] = rolled[tuple(slice(r.stop - r.start) for r in region)]
    return 2 * int(np.prod(shape))


def formats(quick: bool) -> dict[str, object]:
    """Export to each format, and write NIfTI with SimpleITK."""
    shape = (128, 512, 512) if quick else SHAPE
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        store = Path(scratch) / "store.ome.zarr"
        size = write_store(store, shape)
        common = ("--memory", MEMORY, "--workers", str(cores()))
        programs = {name: ("octane", file) for name, file in NAMES.items()}
        programs |= {f"{name}: SimpleITK": ("itk", NAMES[name]) for name in list(NAMES)[:2]}
        for name, (program, file) in programs.items():
            made = Path(scratch) / file
            command = [sys.executable, PROJECT / "bin" / "export.py", store, made, *common]
            if file.endswith(".zarr"):
                command += ["--ome_zarr_version", "0.4"]
            if program == "itk":
                command = [sys.executable, "-c", WHOLE, store, made]
            found = run(command)
            files = [made] if made.is_file() else [p for p in made.rglob("*") if p.is_file()]
            cases.append(
                {
                    "format": name,
                    "seconds": found.seconds,
                    "cpu_seconds": found.cpu_seconds,
                    "file_bytes": sum(p.stat().st_size for p in files),
                    "peak_bytes": found.peak_bytes,
                }
            )
            logger.info("%s: %s", name, cases[-1])
            shutil.rmtree(made) if made.is_dir() else made.unlink()
    return {"shape": shape, "memory": MEMORY, "voxel_bytes": size, "cases": cases}


def main() -> None:
    """Run the benchmark."""
    chosen = command_line(__doc__, PARTS).parse_args()
    run_parts("export", {"formats": lambda: formats(chosen.quick)}, chosen)


if __name__ == "__main__":
    main()
