"""STACK: sections that begin at their own surface, which is tilted."""

import csv
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest
from refusals import refused

from octane.config.parameters import ExecutionParameters
from octane.core.errors import InputError
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.store import writer
from octane.store.image import open_image

SHAPE = (14, 20, 30)
"""Voxels of 10 micrometre."""
THICKNESS = 60.0
ABOVE = 999.0
SCALE = 50
"""Grey levels of a micrometre in sections of integers."""


class Cut(NamedTuple):
    """Surface of a section: depth in micrometres, tilt (y, x) in degrees."""

    depth: float
    tilt: tuple[float, float] = (0.0, 0.0)

    def below(self):
        """Depth of all voxels of a section below its surface, micrometres."""
        z, y, x = (
            10 * (own + 0.5) - 5 * n * middle
            for own, n, middle in zip(np.ogrid[:14, :20, :30], SHAPE, (0, 1, 1), strict=True)
        )
        v, u = np.tan(np.deg2rad(self.tilt))
        return z - (self.depth + v * y + u * x)


CUTS = [Cut(31.0, (2.0, -1.5)), Cut(24.0, (-1.0, 2.0)), Cut(37.5, (0.5, 2.5))]


@pytest.fixture
def write_sections(write_image):
    """Sections whose voxels are as bright as they lie deep, under something brighter."""

    calls = count()

    def write(cuts, *, dtype="float32", voxels=None, thickness=THICKNESS):
        sources, folder = [], next(calls)
        for number, cut in enumerate(cuts, start=1):
            below = cut.below()
            own = np.where(below < -1e-6, ABOVE, below) if voxels is None else voxels[number - 1]
            surface = {"depth": cut.depth, "tilt": [*cut.tilt]}
            about = {"number": number} | ({} if thickness is None else {"thickness": thickness})
            about["surface"] = surface if np.isfinite(cut.depth) else {"reason": "no rise"}
            attributes = {"kind": "section", "section": about}
            name = f"{folder}/section_{number}.ome.zarr"
            if dtype == "uint16":
                # Finer than whole micrometres.
                own = np.round(SCALE * own) if voxels is None else own
            sources.append(write_image(name, own.astype(dtype), attributes=attributes))
        return sources

    return write


@pytest.fixture
def stack(tmp_path, reading):
    """Stack into ``NAME.ome.zarr``; returns the voxels, the image and the metrics."""

    def run(sources, *, name="stack", table=None, workers=2, **settings):
        destination = tmp_path / f"{name}.ome.zarr"
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        parameters = StackParameters.model_validate({"section_surface": "auto", **settings})
        metrics = stack_sections(sources, destination, parameters, reading, execution, table)
        image = open_image(destination)
        return image.array.opened[:], image, metrics

    return run


@pytest.fixture
def moves(tmp_path):
    """A table that displaces the sections."""
    path = tmp_path / "moves.csv"
    rows = [(1, 0, 0, 0), (2, 23.0, -31.0, 4.0), (3, -12.5, 8.0, -2.5)]
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("section", "y", "x", "rotation"), *rows])
    return path


def expected(below):
    """Depths in the levelled volume: those of its planes, or of the first voxel below."""
    first = np.where(below >= -1e-6, below, np.inf).min(axis=0)
    return np.maximum(((np.arange(6) + 0.5) * 10)[:, None, None], first)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "complex64"])
def test_planes_of_levelled_sections_lie_at_one_depth(write_sections, stack, dtype):
    voxels, image, metrics = stack(write_sections(CUTS, dtype=dtype), section_level=True)
    scale = SCALE if dtype == "uint16" else 1
    assert image.grid.shape == (18, 20, 30)
    for start, cut, own in zip((0, 6, 12), CUTS, metrics.figures["sections"], strict=True):
        found = voxels[start : start + 6].real / scale
        np.testing.assert_allclose(found, expected(cut.below()), rtol=1e-5, atol=1 / SCALE)
        assert (own["surface"], own["surface_from"]) == (cut.depth, "measured")
        assert tuple(own["levelled"]) == cut.tilt
    assert metrics.warnings == []


def test_levelled_sections_are_blended_at_one_depth(write_sections, stack):
    sources = write_sections(CUTS)
    plain, _, _ = stack(sources, name="plain", section_level=True)
    voxels, _, metrics = stack(sources, section_level=True, blend=30)
    mixed = plain.copy()
    weights = (np.array([[[1.0]], [[3.0]], [[5.0]]]) / 6).astype(np.float32)
    depth = ((np.arange(3) + 0.5) * 10)[:, None, None]
    for start in (6, 12):
        below = plain[start : start + 3]
        mixed[start : start + 3] = (1 - weights) * (THICKNESS + depth) + weights * below
    np.testing.assert_allclose(voxels, mixed, rtol=1e-5)
    assert [own["blended"] for own in metrics.figures["sections"]] == [0, 30, 30]
    # The wedge that a levelled section lacks at its lower end is not blended.
    _, _, deeper = stack(sources, section_level=True, blend=50)
    assert [own["blended"] for own in deeper.figures["sections"]] == [0, 40, 50]
    assert sum("--stack_blend 50" in warning for warning in deeper.warnings) == 1


def test_a_section_begins_at_its_own_depth_and_keeps_its_tilt(write_sections, stack):
    voxels, image, metrics = stack(write_sections(CUTS))
    for start, cut in zip((0, 6, 12), CUTS, strict=True):
        # In the middle, where four voxels meet.
        middle = voxels[start + 1 : start + 6, 9:11, 14:16].mean(axis=(1, 2))
        np.testing.assert_allclose(middle, 15 + 10 * np.arange(5), atol=1e-3)
        # It begins with whole planes of the image below that depth.
        assert (voxels[start, 0, 0] == ABOVE) == (cut.below()[round(cut.depth / 10), 0, 0] < 0)
    tops = [own["top"] for own in image.attributes["sections"]]
    assert tops == [image.grid.edge[0] + 60 * k - cut.depth for k, cut in enumerate(CUTS)]
    assert [own["levelled"] for own in metrics.figures["sections"]] == [None] * 3


def test_equal_measured_depths_are_stacked_as_a_constant_bit_by_bit(write_sections, stack, rng):
    voxels = rng.normal(size=(3, *SHAPE))
    cuts = [Cut(27.3, (0.3, -0.2))] * 3
    sources = write_sections(cuts, voxels=voxels)
    constant, image, _ = stack(sources, section_surface=27.3, name="constant")
    for level in (False, True):
        # The tilt moves no voxel by a quarter of a voxel.
        found, own, metrics = stack(sources, section_level=level)
        np.testing.assert_array_equal(found, constant)
        assert own.grid == image.grid
        assert metrics.figures["sections"][0]["levelled"] is None


def test_sections_are_levelled_before_they_are_moved(write_sections, stack, moves):
    sources = write_sections([cut._replace(depth=30.0) for cut in CUTS])
    voxels, *_ = stack(sources, table=moves, section_level=True)
    flat, *_ = stack(write_sections([Cut(30.0)] * 3), table=moves, name="flat")
    # The first plane is that of the first voxels below the surface, which differs.
    for start in (1, 7, 13):
        found, plain = voxels[start : start + 5], flat[start : start + 5]
        assert (plain > 0).mean() > 0.4
        np.testing.assert_allclose(found, plain, rtol=1e-5)
    tilted, *_ = stack(sources, table=moves, name="tilted")
    assert np.ptp(tilted[9][tilted[9] > 0]) > 5


@pytest.mark.parametrize(
    ("dtype", "moved"),
    [
        ("float32", True),
        ("uint16", False),
        ("complex64", False),
        pytest.param("float32", False, marks=pytest.mark.soak),
        *(pytest.param(dtype, True, marks=pytest.mark.soak) for dtype in ("uint16", "complex64")),
    ],
)
def test_the_bits_are_the_same_on_any_threads_and_blocks(
    write_sections, stack, moves, rng, monkeypatch, dtype, moved
):
    voxels = 1000 * rng.random((3, *SHAPE))
    sources = write_sections(CUTS, voxels=voxels * (1 + 2j if dtype == "complex64" else 1),
                             dtype=dtype)  # fmt: skip
    given = {"section_level": True, "table": moves if moved else None}
    whole, *_ = stack(sources, workers=1, **given)
    assert (whole != 0).mean() > 0.4
    monkeypatch.setattr(writer, "CHUNK", 4)
    monkeypatch.setattr(writer, "SHARD", 8)
    for workers in (1, 3):
        cut, image, _ = stack(sources, name="cut", workers=workers, **given)
        assert image.array.shards == (8, 8, 8)
        np.testing.assert_array_equal(cut, whole)


def test_what_was_not_imaged_of_a_levelled_section_is_0_and_named(write_sections, stack):
    # It rises by 11 micrometre at the border, above the image there; 140 are imaged.
    cut = Cut(6.0, (3.0, -2.0))
    (source,) = write_sections([cut])
    voxels, image, metrics = stack([source], section_level=True, section_thickness=140)
    assert image.grid.shape[0] == 14
    place = cut.depth + 5 + 10 * np.arange(14)[:, None, None] - (cut.below()[:1] + cut.depth - 5)
    is_imaged = (place >= 0) & (place <= 140)
    np.testing.assert_array_equal(voxels != 0, is_imaged)
    partly = sum(0 < plane.mean() < 1 for plane in is_imaged)
    assert metrics.warnings == [
        f"Section 1 is tilted: up to {partly} levelled planes of a section were imaged only in "
        "part and are zero elsewhere; check --section_thickness."
    ]


def test_a_levelled_section_is_as_thick_as_all_its_pixels_unless_stated(write_sections, stack):
    sources = write_sections(CUTS, thickness=None)
    _, _, metrics = stack(sources, section_level=True)
    for own, cut in zip(metrics.figures["sections"], CUTS, strict=True):
        lowest = cut.below()[-1].min() + 5
        # The border lies half a voxel beyond the centre of the last pixel.
        assert own["thickness"] == pytest.approx(lowest, abs=1)
        assert own["thickness"] < lowest
    assert metrics.warnings == []
    (source,) = write_sections([Cut(60.0, (45.0, 0.0))], thickness=None)
    with refused("section_1", "45", "--section_thickn", error=InputError):
        stack([source], section_level=True)


def test_a_section_without_a_measured_surface_is_named(write_sections, stack):
    sources = write_sections([CUTS[0], Cut(np.nan), CUTS[1]])
    _, _, metrics = stack(sources, section_level=True)
    own = metrics.figures["sections"][1]
    assert (own["surface"], own["surface_from"]) == (27.5, "of the other sections")
    assert own["levelled"] is None
    assert metrics.warnings == [
        "The surface of section 2 (no rise) was not measured: it begins 27.5 micrometre deep, as "
        "the median of the others."
    ]
