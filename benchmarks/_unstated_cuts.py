"""Data sets whose sections are cut out of one block, and how they lie."""

from dataclasses import replace

from _unstated_data import WRITE_PITCH, Laboratory, write_grid, write_one_set
from _unstated_labs import SIZE, Y
from _unstated_tissue import Cut
from tile_writers import write_imagej, write_itk, write_planes, write_png

from octane.processes.stack.layout.displacement import Displacement

DEEP = (24, 100, 100)
"""Voxels of a tile: of a section of 160 micrometres, it shows eight planes of the next one."""
UNEQUAL = (150, 190, 130, 170)
ASIDE = (Displacement(20, -25), Displacement(-15, 10), Displacement(0, 30))
TURNED = (Displacement(0, 0, 0.6), Displacement(0, 0, -0.5), Displacement(0, 0, 0.4))
BOTH = (Displacement(20, -25, 0.5), Displacement(-15, 10, -0.5), Displacement(5, 30, 0.3))
WATER = (40.0, 65.0, 50.0)
TILTS = ((0.6, -0.4), (-0.5, 0.5), (0.2, 0.7))
MISSING = {"allow_missing_sections": "1"}
GONE = frozenset({3})

_DEEP = Laboratory("", tile=DEEP, cut=Cut())
_WET = replace(_DEEP, tile=(32, 100, 100))


def _cut(lab: Laboratory, name: str, cut: Cut, **more) -> Laboratory:
    return replace(lab, name=name, cut=cut, **more)


CUTS = (
    _cut(_DEEP, "deeper than thick", Cut()),
    _cut(_DEEP, "unequal thickness, places", Cut(UNEQUAL), places=True),
    _cut(_DEEP, "displaced, NRRD", Cut(moves=ASIDE), write=write_itk(".nrrd")),
    _cut(_DEEP, "turned, mosaic grids, pitch", Cut(moves=TURNED), write=WRITE_PITCH, whole=True),
    _cut(_WET, "under water, ImageJ's TIFF", Cut(water=WATER), write=write_imagej),
    _cut(_WET, "under water, tilted", Cut(water=WATER, tilts=TILTS)),
    _cut(
        _DEEP,
        "section 3 missing, planes as PNG",
        Cut((160, 160, 160, 160), gone=GONE),
        write=write_png,
        remedies={**SIZE, **MISSING},
    ),
    _cut(
        _DEEP,
        "section 3 missing, displaced, NIfTI",
        Cut((160, 160, 160, 160), gone=GONE, moves=(*ASIDE, ASIDE[0])),
        write=write_itk(".nii.gz"),
        remedies=MISSING,
    ),
    _cut(
        _DEEP,
        "unequal, displaced, turned, float32",
        Cut(UNEQUAL, moves=(*BOTH, BOTH[0])),
        write=write_itk(".mha"),
        dtype="float32",
    ),
    _cut(
        _WET,
        "under water, displaced, sets, places, y up",
        Cut(water=WATER, moves=ASIDE),
        write=write_one_set,
        whole=True,
        places=True,
        turn=Y,
    ),
    _cut(
        _WET,
        "under water, tilted, unequal, mosaic grids",
        Cut(UNEQUAL[:3], water=WATER, tilts=TILTS),
        write=write_grid,
        whole=True,
    ),
    _cut(
        _WET,
        "all of these, steps of brightness, uint8",
        Cut(UNEQUAL[:3], BOTH, WATER, TILTS, (1.0, 0.7, 1.2)),
        write=write_planes,
        dtype="uint8",
        remedies=SIZE,
    ),
    _cut(_DEEP, "as deep as thick", Cut((240, 240, 240))),
    _cut(
        _DEEP,
        "as deep as thick, displaced",
        Cut((240, 240, 240), ASIDE, named="Section alignment"),
    ),
)
