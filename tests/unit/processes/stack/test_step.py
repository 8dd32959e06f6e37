"""STACK: sections at their depth, recorded boundaries, reported gaps, undone displacements."""

import csv
from itertools import count, pairwise

import numpy as np
import pytest
from refusals import refused
from tissue import ellipse, seen, speckled, texture
from zarr.codecs import BloscCodec

from octane.config.parameters import ExecutionParameters
from octane.core.errors import OctaneError
from octane.layout.sections import read_sections
from octane.processes.report.verdict import check_subject
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stack import facing
from octane.processes.stack.alignment import SectionPair
from octane.processes.stack.layout.displacement import IN_PLACE, Displacement
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import StackFigures
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.record import COMPENSATION
from octane.processes.stitch.step import stitch_section
from octane.store import writer
from octane.store.image import open_image

SHAPE = (150, 180)
PLANES, DEEP = 5, 7
MOVES = [IN_PLACE, Displacement(6.4, -7.3, 1.5), IN_PLACE, Displacement(-4, 9, 0), IN_PLACE]
LOST = [(0, 0), (50, 60), (100, 0), (0, 120)]
SHIFTS = [Displacement(move.y, move.x, 0) for move in MOVES]


@pytest.fixture
def stack(tmp_path, reading):
    """Stack into ``out/NAME.ome.zarr``; returns the voxels, the image and the metrics."""

    def run(
        sources, align="none", *, name="stack", given=None, table=None, workers=2, again=False,
        **settings,
    ):  # fmt: skip
        destination = tmp_path / "out" / f"{name}.ome.zarr"
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=again)
        parameters = StackParameters(align=align, **settings)
        inputs = (sources, destination, parameters, reading, execution)
        metrics = stack_sections(*inputs, given, table)
        image = open_image(destination)
        return image.array.opened[:], image, metrics

    return run


@pytest.fixture
def write_section(write_image):
    """A section on a grid of 10 um; 8 planes unless other voxels are given."""

    def write(number, voxels=None, *, edge=(0.0, 0.0, 0.0), factors=None, **section):
        if voxels is None:
            voxels = np.full((8, 6, 7), number, np.float32)
        noted = {"kind": "section", "section": {"number": number, **section}}
        if factors is not None:
            noted[COMPENSATION] = list(factors)
        name = f"section_{number:02d}.ome.zarr"
        return write_image(name, voxels, edge=edge, attributes=noted)

    return write


def planes(image):
    """The value of each plane, which must be uniform."""
    voxels = image.array.opened[:]
    assert (voxels == voxels[:, :1, :1]).all()
    return voxels[:, 0, 0].tolist()


def boundaries(image):
    return [(s.start, s.stop) for s in read_sections(image.attributes, image.grid.shape[0])]


def test_sections_lie_on_top_of_each_other_in_the_order_of_their_numbers(write_section, stack):
    sources = [write_section(n, thickness=50.0) for n in (10, 9, 11)]
    _, image, metrics = stack(sources, codec="blosc-lz4")
    assert isinstance(image.array.opened.compressors[0], BloscCodec)
    assert planes(image) == [9] * 5 + [10] * 5 + [11] * 5
    assert boundaries(image) == [(0, 5), (5, 10), (10, 15)]
    assert image.grid.origin == (5.0, 5.0, 5.0)
    assert image.attributes["kind"] == "volume"
    assert [s["name"] for s in metrics.figures["sections"]] == [
        f"section_{n:02d}.ome.zarr" for n in (9, 10, 11)
    ]


@pytest.mark.parametrize("thickness", [25.0, 33.0, 47.5, 56.7])
@pytest.mark.parametrize(("count", "surface"), [(1, 0), (5, 0), (5, 20), (5, 17.5)])
def test_a_thickness_need_not_be_a_multiple_of_the_voxel(
    write_section, stack, thickness, count, surface
):
    # Each plane holds its imaged depth, so that the stack must hold its depth throughout.
    depth = ((np.arange(8) + 0.5) * 10).astype(np.float32)
    voxels = np.broadcast_to(depth[:, None, None], (8, 4, 4))
    sources = [write_section(n, voxels, thickness=thickness) for n in range(1, count + 1)]
    _, image, metrics = stack(sources, section_surface=surface)
    total = image.grid.shape[0]
    assert abs(total * 10 - count * thickness) <= 5 + 1e-6
    found = boundaries(image)
    assert found[0][0] == 0
    assert found[-1][1] == total
    assert all(a[1] == b[0] for a, b in pairwise(found))
    for number, (start, stop) in enumerate(found):
        centres = (np.arange(start, stop) + 0.5) * 10 - number * thickness
        # A plane in the topmost half voxel has the value of the first imaged one below.
        expected = np.maximum(centres + surface, 5 + 10 * np.ceil(surface / 10 - 0.5))
        np.testing.assert_allclose(planes(image)[start:stop], expected, rtol=1e-5)
        below = image.grid.origin[0] + 10 * np.arange(start, stop)
        below -= image.attributes["sections"][number]["top"]
        np.testing.assert_allclose(below, centres + surface, atol=1e-9)
        assert centres.min() > -1e-6
        assert centres.max() <= thickness + (1e-6 if number + 1 < count else 5)
    assert metrics.warnings == []


@pytest.mark.parametrize(
    ("noted", "given", "expected"),
    [
        ({"thickness": 50.0}, {"section_thickness": 30.0}, [1] * 3 + [2] * 3),
        # The full depth.
        ({}, {}, [1] * 8 + [2] * 8),
        ({}, {"section_surface": 30.0}, [1] * 5 + [2] * 5),
        ({"thickness": 100.0}, {}, [1] * 8 + [0] * 2 + [2] * 8 + [0] * 2),
    ],
    ids=["given", "unknown", "below water", "beyond the imaged depth"],
)
def test_the_thickness_is_the_one_given_or_noted_or_the_depth(
    write_section, stack, noted, given, expected
):
    _, image, metrics = stack([write_section(n, **noted) for n in (1, 2)], **given)
    assert planes(image) == expected
    assert ["--section_thickness" in warning for warning in metrics.warnings] == [True] * (
        0 in expected
    )


@pytest.mark.parametrize(
    ("edges", "given", "noted", "thick", "source"),
    [
        ((500, 550, 600), {}, {}, 50, "from the translations along z"),
        ((600, 550, 500), {}, {}, 50, "from the translations along z"),
        ((500, 550, 650), {}, {}, 80, "the imaged depth"),
        ((500, 590, 680), {}, {}, 80, "the imaged depth"),
        ((500, 503, 501), {}, {}, 80, "the imaged depth"),
        ((500, 580, 660), {"section_surface": 10}, {}, 70, "the imaged depth"),
        ((500, 570, 640), {"section_surface": 10}, {}, 70, "from the translations along z"),
        ((500, 550, 600), {}, {"thickness": 60.0}, 60, "from the metadata"),
        ((500, 550, 600), {"section_thickness": 70}, {"thickness": 60.0}, 70, "as given"),
    ],
)
def test_the_distance_along_z_is_the_thickness_where_nothing_else_says_it(
    write_section, stack, caplog, edges, given, noted, thick, source
):
    sources = [write_section(n, edge=(z, 0, 0), **noted) for n, z in enumerate(edges, start=4)]
    with caplog.at_level("INFO"):
        _, image, metrics = stack(sources, **given)
    assert boundaries(image) == [(k * thick // 10, (k + 1) * thick // 10) for k in range(3)]
    assert f"Section thickness: {thick} micrometre, {source}." in caplog.text
    for section in metrics.figures["sections"]:
        assert (section["thickness"], section["thickness_from"]) == (thick, source)


def test_a_missing_section_takes_its_part_of_the_distance(write_section, stack):
    sources = [write_section(n, edge=(50 * n, 0, 0)) for n in (1, 2, 4)]
    _, image, _ = stack(sources, allow_missing_sections=1)
    assert planes(image) == [1] * 5 + [2] * 5 + [0] * 5 + [4] * 5
    # As their stores say.
    tops = [section["top"] for section in image.attributes["sections"]]
    assert tops == [50, 100, 150, 200]


def test_an_allowed_gap_is_a_blank_slab_and_listed(write_section, stack):
    sources = [write_section(n, thickness=50.0) for n in (1, 2, 4)]
    _, image, metrics = stack(sources, allow_missing_sections=1)
    assert planes(image) == [1] * 5 + [2] * 5 + [0] * 5 + [4] * 5
    assert boundaries(image) == [(0, 5), (5, 10), (10, 15), (15, 20)]
    noted = read_sections(image.attributes, 20)
    assert [(s.number, s.missing) for s in noted] == [(1, False), (2, False), (3, True), (4, False)]
    assert metrics.figures["missing_sections"] == [3]
    assert "Section 3 is missing" in metrics.warnings[0]
    # The middle plane is blank; the report shows the imaged plane next to it.
    assert (metrics.previews["slice_z"] == 2).all()
    np.testing.assert_array_equal(metrics.previews["slice_x"], image.array.opened[:, :, 3])
    assert metrics.previews["slice_spacing"].tolist() == [10.0] * 3


@pytest.mark.parametrize(
    ("names", "other", "settings", "words"),
    [
        ("1", "f4", {"section_thickness": 0.2}, r"--section_thickness 0\.2 .*micrometre"),
        ("1", "f4", {"section_surface": 76}, "76 leaves no plane of .*80 micrometre deep"),
        ("1 2", "f4", {"section_thickness": 81}, "exceeds the depth .* 80 micrometre.* omit"),
        ("1 2", "u2", {}, "2.* is uint16"),
        ("1 again_1", "f4", {}, "again_1.* and .*1.ome.zarr are both section 1"),
        ("1 brain", "f4", {}, "brain.* lacks a number in its name"),
        ("1 2 5", "f4", {}, "lacks section 3, 4 of 1 to 5.*--allow_missing_sections 2"),
        ("1 99", "f4", {}, "lacks section 2, 3, .*, 17 and 81 more of 1 to 99"),
        ("1 2 5", "f4", {"allow_missing_sections": 1}, "lacks section 3, 4"),
    ],
)
def test_sections_that_do_not_fit_together_are_refused(
    write_image, stack, tmp_path, names, other, settings, words
):
    # The last one may have another type.
    types = ["f4"] * names.count(" ") + [other]
    sources = [
        write_image(f"{name}.ome.zarr", np.ones((8, 6, 7), dtype))
        for name, dtype in zip(names.split(), types, strict=True)
    ]
    with pytest.raises(OctaneError, match=words):
        stack(sources, **settings)
    assert not (tmp_path / "out").exists()


def test_a_section_alone_needs_no_number(write_image, stack):
    _, image, _ = stack([write_image("brain.ome.zarr", np.ones((8, 6, 7), np.float32))])
    assert [s.number for s in read_sections(image.attributes, 8)] == [1]


def test_sections_lie_where_they_were_imaged(write_section, stack):
    sources = [write_section(1), write_section(2, edge=(0.0, 20.0, -10.0))]
    _, image, _ = stack(sources)
    assert image.grid.edge == pytest.approx((0.0, 0.0, -10.0))
    assert image.grid.shape == (16, 8, 8)
    expected = np.zeros((16, 8, 8))
    expected[:8, :6, 1:] = 1
    expected[8:, 2:, :7] = 2
    np.testing.assert_array_equal(image.array.opened[:], expected)


def centre_of(image, place):
    """Centre of mass of a bead near a position, micrometres (z, y, x)."""
    grid = image.grid
    axes = [
        o + s * np.arange(n) for o, s, n in zip(grid.origin, grid.spacing, grid.shape, strict=True)
    ]
    near = [np.abs(axis - at) < 30 for axis, at in zip(axes, place, strict=True)]
    weights = image.array.opened[:][np.ix_(*near)]
    own = np.meshgrid(*(axis[n] for axis, n in zip(axes, near, strict=True)), indexing="ij")
    return [float(np.average(positions, weights=weights)) for positions in own]


# The first voxel's centre as other programs write it: omitted, or a stage position.
@pytest.mark.parametrize("first", [(0.0, 0.0, 0.0), (1000.0, -30.0, 14.0)])
@pytest.mark.parametrize("resolution", [(10.0, 10.0, 10.0), (7.0, 10.0, 13.0)])
def test_a_bead_lies_at_one_place_as_mosaics_as_sections_and_as_a_volume(
    write_foreign, tmp_path, reading, execution, stack, first, resolution
):
    spacing, thickness, shape = (3.5, 4.0, 4.0), 24, (48, 60, 80)
    beads = [np.add(first, at) for at in ((42.0, 121.0, 85.0), (121.0, 99.0, 239.0))]
    axes = [o + s * np.arange(n) for o, s, n in zip(first, spacing, shape, strict=True)]
    distances = [[((a - c) / 8) ** 2 for a, c in zip(axes, bead, strict=True)] for bead in beads]
    voxels = sum(np.exp(-(z[:, None, None] + y[:, None] + x) / 2) for z, y, x in distances).astype(
        np.float32
    )

    def write(name, values, top, chunks):
        place = [first[0] + top * spacing[0], *first[1:]]
        transforms = [
            {"type": "scale", "scale": [*spacing]},
            {"type": "translation", "translation": place},
        ]
        return write_foreign(name, values, chunks=chunks, transforms=transforms)

    def resample(source, **settings):
        made = tmp_path / "resampled" / source.name
        resample_image(
            source, made, ResampleParameters(resolution=resolution, **settings), reading, execution
        )
        return made

    whole = open_image(resample(write("whole.zarr", voxels, 0, shape), layout="volume"))
    sections, stitched = [], []
    for number in (1, 2):
        top = (number - 1) * thickness
        section = voxels[top : top + thickness]
        name = f"section_{number}.zarr"
        sections.append(write(name, section, top, section.shape))
        # Tiles of 36 x 48 voxels that share 12 and 16.
        rows, columns = np.r_[:36, 24:60], np.r_[:48, 32:80]
        mosaic = write(f"mosaics/{name}", section[:, rows][:, :, columns], top, (thickness, 36, 48))
        stitched.append(tmp_path / "stitched" / name)
        parameters = StitchParameters(overlap=(12 / 36, 16 / 48))
        stitch_section(resample(mosaic), stitched[-1], parameters, reading, execution)
    stacked = [stack(sections, name="sections")[1], stack(stitched, name="mosaics")[1]]
    for bead in beads:
        for volume in (whole, *stacked):
            assert centre_of(volume, bead) == pytest.approx(bead, abs=0.3)
    for volume in stacked:
        assert volume.grid.edge == pytest.approx(np.subtract(first, np.divide(spacing, 2)), abs=0.5)
        # The position in the section's own image, as documented.
        tops = [volume.attributes["sections"][k]["top"] for k in (0, 1)]
        assert tops == pytest.approx([volume.grid.edge[0], volume.grid.edge[0] + 84.0])


@pytest.mark.parametrize(("x", "named"), [(50.0, False), (70.0, True)])
def test_sections_that_do_not_overlap_are_named(write_section, stack, x, named):
    sources = [write_section(1), write_section(2, edge=(0.0, 0.0, x)), write_section(3)]
    (*warned,) = stack(sources)[2].warnings
    assert [
        "Sections 2, 3 do not overlap the sections before them in y and x" in line
        for line in warned
    ] == [True] * named


def test_sections_between_voxels_are_interpolated(write_section, stack):
    ramp = np.broadcast_to(((np.arange(12) + 0.5) * 10).astype(np.float32), (8, 6, 12)).copy()
    sources = [write_section(1, ramp), write_section(2, ramp + 4, edge=(0.0, 0.0, 4.0))]
    _, image, _ = stack(sources)
    x = image.grid.origin[2] + np.arange(image.grid.shape[2]) * 10
    # Both sections hold their own x position as values.
    for section in (image.array.opened[3, 3], image.array.opened[12, 3]):
        np.testing.assert_allclose(section[1:11], x[1:11], rtol=1e-5)


def test_a_stack_cut_into_blocks_gives_the_same_bits(write_section, stack, rng, monkeypatch):
    sources = [
        write_section(
            n, rng.random((8, 30, 40), np.float32), thickness=47.3, edge=(0.0, 3.0 * n, 0.0)
        )
        for n in (1, 2, 3)
    ]
    whole = stack(sources)[0]
    monkeypatch.setattr(writer, "CHUNK", 4)
    monkeypatch.setattr(writer, "SHARD", 8)
    cut, image, _ = stack(sources, again=True)
    assert image.array.shards == (8, 8, 8)
    np.testing.assert_array_equal(cut, whole)


def test_complex_sections_are_stacked_and_compared_by_modulus(write_section, stack):
    sources = [write_section(n, np.full((8, 6, 7), n * 1j, np.complex64)) for n in (1, 2)]
    _, image, metrics = stack(sources)
    assert planes(image) == [1j] * 8 + [2j] * 8
    assert (metrics.previews["slice_x"][:, 0] == [1] * 8 + [2] * 8).all()


def test_a_voxel_that_is_no_number_hides_no_dark_section(write_section, stack, rng):
    voxels = np.repeat(rng.random((1, 6, 7), np.float32), 8, axis=0)
    lacking = voxels.copy()
    lacking[0, 0, 0] = np.nan
    *_, metrics = stack([write_section(1, lacking), write_section(2, 4 * voxels)])
    found = [s["brightness"] for s in metrics.figures["sections"]]
    assert found == pytest.approx([0.25, 4], rel=0.2)


# Sections that are displaced


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64", "complex64"])
def test_sections_are_blended_linearly_over_what_both_show(write_section, stack, dtype):
    voxels = [np.full((8, 6, 7), value, dtype) for value in (40, 100, 160)]
    sources = [write_section(n, v, thickness=50.0) for n, v in enumerate(voxels, start=1)]
    _, image, metrics = stack(sources, blend=30)
    # At the planes' centres, one half of a voxel below the surface.
    own = [40] * 5 + [50, 70, 90, 100, 100] + [110, 130, 150, 160, 160]
    np.testing.assert_allclose(planes(image), own, rtol=1e-6)
    assert image.array.opened.dtype == dtype
    assert [s.blended for s in read_sections(image.attributes, 15)] == [0, 30, 30]
    assert boundaries(image) == [(0, 5), (5, 10), (10, 15)]
    assert metrics.figures["blend"] == 30
    assert metrics.warnings == []


@pytest.mark.parametrize(("thickness", "surface"), [(33.0, 0.0), (47.5, 10.0), (40.0, 17.5)])
def test_weights_follow_the_surface_between_planes(write_section, stack, thickness, surface):
    sources = [
        write_section(n, np.full((8, 4, 4), n, np.float32), thickness=thickness) for n in (1, 2)
    ]
    _, image, _ = stack(sources, blend=20, section_surface=surface)
    depth = (np.arange(image.grid.shape[0]) + 0.5) * 10 - thickness
    np.testing.assert_allclose(planes(image), 1 + np.clip(depth / 20, 0, 1), rtol=1e-6)


def test_blended_sections_show_the_tissue_at_its_depth(write_section, stack):
    # Reflectivity that changes along z as in the subject, and light that fades in each section.
    depth = (np.arange(8) + 0.5) * 10
    sources = [
        write_section(n, np.broadcast_to((depth + 50 * n)[:, None, None], (8, 4, 4)).astype("f4"),
                      thickness=50.0)
        for n in range(3)
    ]  # fmt: skip
    _, image, _ = stack(sources, blend=30)
    np.testing.assert_allclose(planes(image), 5 + 10 * np.arange(15), rtol=1e-6)


@pytest.mark.parametrize(
    ("numbers", "given", "blended", "named"),
    [
        ((1, 2, 3), {"blend": 100}, [0, 30, 30], "exceeds the 30 micrometre"),
        ((1, 2, 3), {"blend": 30, "section_thickness": 80}, [0, 0, 0], "sections 2, 3"),
        ((1, 2, 3), {"blend": 30, "section_thickness": 20}, [0, 20, 20], "exceeds the 20"),
        ((1, 3, 4), {"blend": 30, "allow_missing_sections": 1}, [0, 0, 0, 30], None),
        ((1, 3, 4), {"blend": 30, "excluded_sections": "2"}, [0, 0, 0, 30], None),
    ],
    ids=["deeper than imaged", "nothing shared", "thicker than a section", "missing", "excluded"],
)
def test_what_is_not_shared_is_not_blended_and_said(
    write_section, stack, numbers, given, blended, named
):
    sources = [write_section(n, thickness=50.0) for n in numbers]
    plain, _, _ = stack(sources, name="plain", **given | {"blend": 0})
    voxels, image, metrics = stack(sources, **given)
    found = read_sections(image.attributes, len(voxels))
    assert [s.blended for s in found] == blended
    changed = {s.number for s in found if (voxels != plain)[s.start : s.stop].any()}
    assert changed == {s.number for s in found if s.blended}
    said = [warning for warning in metrics.warnings if "--stack_blend" in warning]
    assert len(said) == (named is not None)
    assert all(str(named) in warning for warning in said)


def test_a_blend_below_one_voxel_is_refused(write_section, stack):
    with refused("--stack_blend", "9", "10"):
        stack([write_section(n, thickness=50.0) for n in (1, 2)], blend=9)


@pytest.mark.parametrize("nothing", [0, np.nan, np.inf])
@pytest.mark.parametrize("section", [0, 1])
def test_voxels_that_a_section_does_not_show_are_not_blended(
    write_section, stack, rng, nothing, section
):
    voxels = rng.gamma(4.0, 25.0, (2, 8, 30, 40)).astype(np.float32)
    voxels[section, :, 10:20, 5:] = nothing
    sources = [write_section(n, v, thickness=50.0) for n, v in enumerate(voxels, start=1)]
    plain, _, _ = stack(sources, name="plain")
    blended, _, _ = stack(sources, blend=30)
    changed = np.zeros(blended.shape, bool)
    changed[5:8] = True
    changed[5:8, 10:20, 5:] = False
    np.testing.assert_array_equal(blended[~changed], plain[~changed])
    weights = np.array([1, 3, 5], np.float32)[:, None, None] / 6
    mean = (1 - weights) * voxels[0, 5:] + weights * voxels[1, :3]
    np.testing.assert_allclose(blended[changed], mean[changed[5:8]], rtol=1e-6)


def test_blending_hides_no_dark_section(write_section, stack, rng):
    # A bright disc, so that faces have tissue.
    disc = rng.gamma(4.0, 25.0, (90, 110)) * (np.hypot(*np.indices((90, 110))) < 80)
    sources = [
        write_section(n, np.broadcast_to(light * disc, (24, 90, 110)).astype("f4"), thickness=160.0)
        for n, light in ((1, 1.0), (2, 0.4), (3, 1.0))
    ]
    _, _, plain = stack(sources, name="plain")
    _, _, blended = stack(sources, blend=80)
    for name in ("brightness", "step", "flipped"):
        each = [[s[name] for s in m.figures["sections"]] for m in (plain, blended)]
        assert each[0] == each[1]
    jumps = plain.figures["boundaries"], blended.figures["boundaries"]
    assert jumps[0] == pytest.approx({"2": 0.4, "3": 2.5})
    assert 0.4 < jumps[1]["2"] < 0.7
    assert 1.4 < jumps[1]["3"] < 2.5


@pytest.mark.parametrize(("surface", "by"), [(0.0, 1.0), (30.0, 1.0), (0.0, -1.0)])
def test_compensated_light_is_judged_by_jumps_as_they_were_before(
    write_section, stack, rng, surface, by
):
    # Light decays in the sections, or rises by a factor that fits them not at all.
    disc = rng.gamma(4.0, 25.0, (90, 110)) * (np.hypot(*np.indices((90, 110))) < 80)
    light = np.exp(-0.03 * np.arange(24))
    seen = (light[:, None, None] * disc).astype(np.float32)
    factors = light**-by
    made = (factors[:, None, None] * seen).astype(np.float32)
    given = {"section_surface": surface, "section_thickness": 160.0}
    raw = [write_section(n, seen) for n in (1, 2, 3)]
    _, _, plain = stack(raw, name="plain", **given)
    changed = [write_section(n, made, factors=factors) for n in (11, 12, 13)]
    _, _, metrics = stack(changed, **given)
    assert plain.figures["compensated"] is None
    found = metrics.figures["compensated"]
    mean = np.expm1(np.mean(np.abs(np.log([*plain.figures["boundaries"].values()]))))
    assert mean > 0.3
    assert found["before"] == pytest.approx(mean, rel=1e-3)
    (check,) = [
        own
        for own in check_subject([], {}, StackFigures.model_validate(metrics.figures), None)
        if own.name == "Light lost with depth"
    ]
    if by > 0:
        assert found["after"] < 1e-3
        assert check.state == "good"
    else:
        assert found["after"] > mean
        assert check.state == "warning"
        assert "--stitch_attenuation" in check.sentence


@pytest.fixture
def write_sections(write_image):
    """Displaced sections of one tissue: 5 planes of 10 um, imaged 2 planes deeper."""

    calls = count()

    def write(
        moves,
        *,
        dtype="float32",
        spacing=(10.0, 10.0, 10.0),
        odd=(),
        scale=1000,
        lost=None,
        water=0,
        changes=False,
        mirrored=(),
    ):
        sources, folder = [], f"subject_{next(calls)}"
        for number, move in enumerate(moves, start=1):
            tissue = texture(SHAPE, 7 if number in odd else 0)
            voxels = np.broadcast_to(scale * seen(tissue, move), (DEEP, *SHAPE)).astype(dtype)
            if changes:
                # From plane to plane, so that only planes imaged twice show the same tissue.
                depth = PLANES * number + np.arange(DEEP)[:, None, None]
                parts = [scale * seen(texture(SHAPE, seed), move) for seed in (8, 9, 10)]
                waves = [1 + np.cos(depth / 3 + k * 2.1) for k in range(3)]
                voxels = sum(a * b for a, b in zip(waves, parts, strict=True)).astype(dtype)
            if number in mirrored:
                voxels = np.ascontiguousarray(voxels[..., ::-1])
            noted = {"number": number, "thickness": PLANES * spacing[0]}
            if lost is not None:
                # Low contrast, compared with which the border of a dark tile is strong.
                voxels = voxels + np.float32(20 * scale)
                y, x = LOST[number % len(LOST)]
                voxels[:, y : y + 50, x : x + 60] = 0
                box = [10.0 * y, 10.0 * x, 10.0 * (y + 50), 10.0 * (x + 60)]
                noted |= {"not_compared": [box]} if lost == "noted" else {}
            voxels = np.concatenate([np.full((water, *SHAPE), 9, dtype), voxels])
            attributes = {"kind": "section", "section": noted}
            name = f"{folder}/section_{number:02d}.ome.zarr"
            sources.append(write_image(name, voxels, spacing=spacing, attributes=attributes))
        return sources

    return write


def inner(voxels, image):
    """Voxels that tissue covers at any displacement of its section, by position."""
    low = [round((200 - edge) / 10) for edge in image.grid.edge[1:]]
    return voxels[:, low[0] : low[0] + SHAPE[0] - 40, low[1] : low[1] + SHAPE[1] - 40]


@pytest.mark.parametrize(("align", "moves"), [("translation", SHIFTS), ("rigid", MOVES)])
def test_displaced_sections_are_moved_to_where_they_fit(write_sections, stack, align, moves):
    clean, image, _ = stack(write_sections([IN_PLACE] * 5), "none")
    expected = inner(clean, image)
    sources = write_sections(moves)
    *own, unmoved = stack(sources, "none", name="before")
    before = inner(*own)
    # Displacements that are not undone are reported as well.
    for section, move in zip(unmoved.figures["sections"], moves, strict=True):
        assert section["shift"] == pytest.approx((10 * move.y, 10 * move.x), abs=1)
        assert not section["moved"]
    voxels, image, metrics = stack(sources, align, name="after")
    after = inner(voxels, image)
    wrong = [float(np.abs(found - expected).mean()) for found in (before, after)]
    assert wrong[1] < 0.05 * wrong[0]
    assert metrics.warnings == []
    for section, move in zip(metrics.figures["sections"], moves, strict=True):
        assert section["shift"] == pytest.approx((10 * move.y, 10 * move.x), abs=0.6)
        assert section["rotation"] == pytest.approx(move.rotation, abs=0.03)
        assert section["moved"] == (move != IN_PLACE)


@pytest.mark.parametrize(("align", "moves"), [("translation", SHIFTS), ("rigid", MOVES)])
def test_auto_moves_sections_as_they_need(write_sections, stack, align, moves):
    sources = write_sections(moves, changes=True)
    expected, *_ = stack(sources, align, name=align)
    found, _, metrics = stack(sources, "auto", name="auto")
    assert np.array_equal(found, expected)
    assert metrics.figures["align"] == align


@pytest.mark.parametrize(
    ("moves", "given"),
    [
        ([IN_PLACE] * 5, {}),
        # Sections that show no tissue twice.
        (SHIFTS, {"section_thickness": 10.0 * DEEP}),
        # Less than a voxel.
        ([IN_PLACE, Displacement(0.0, 0.6), IN_PLACE, IN_PLACE, IN_PLACE], {}),
    ],
)
def test_auto_leaves_sections_where_they_were_imaged(write_sections, stack, moves, given):
    sources = write_sections(moves, changes=True)
    expected, *_ = stack(sources, "none", name="none", **given)
    found, _, metrics = stack(sources, "auto", name="auto", **given)
    assert np.array_equal(found, expected)
    assert metrics.figures["align"] == "none"
    assert not any(section["moved"] for section in metrics.figures["sections"])


def test_auto_moves_nothing_beside_a_mirrored_section(write_sections, stack):
    moves = [*SHIFTS[:3], IN_PLACE, IN_PLACE]
    *_, metrics = stack(write_sections(moves, changes=True, mirrored={4}), "auto", name="auto")
    assert [section["flipped"] for section in metrics.figures["sections"]][3] == "x"
    assert metrics.figures["align"] == "none"


@pytest.mark.parametrize("align", [pytest.param("none", marks=pytest.mark.soak), "rigid"])
def test_what_lies_above_the_surface_changes_nothing(write_sections, stack, align):
    expected, *_ = stack(write_sections(MOVES), align, name="dry")
    found, *_ = stack(write_sections(MOVES, water=3), align, name="wet", section_surface=30.0)
    np.testing.assert_array_equal(found, expected)


def test_sections_that_fit_are_copied_bit_by_bit(write_sections, stack):
    sources = write_sections([IN_PLACE] * 3)
    for align in ("translation", "rigid"):
        voxels, image, metrics = stack(sources, align, name=align)
        np.testing.assert_array_equal(voxels, stack(sources, "none", again=True)[0])
        assert image.grid.shape == (15, *SHAPE)
        assert [s["moved"] for s in metrics.figures["sections"]] == [False] * 3
    # Also next to a moved section, although the volume is larger.
    voxels, image, _ = stack(write_sections(MOVES), "rigid", name="moved")
    whole = stack(write_sections([IN_PLACE] * 5), "none", again=True)
    np.testing.assert_array_equal(inner(voxels, image)[10:15], inner(*whole[:2])[10:15])


def test_the_volume_holds_what_was_moved_and_is_zero_beyond(write_sections, stack):
    voxels, image, _ = stack(write_sections(MOVES), "rigid")
    edge, far = image.grid.edge, np.add(image.grid.edge, image.grid.extent)
    # The fourth section is 4 voxels too low in y and 9 too high in x.
    assert edge[2] <= -90
    assert far[1] >= 1540
    section = voxels[15:20, round(-edge[1] / 10) :, round(-edge[2] / 10) :]
    assert (section[:, :4] == 0).all()
    assert (section[:, 5:154, :171] > 0).all()
    assert (section[:, :, 172:] == 0).all()
    assert ((edge[1] / 10) % 1, (edge[2] / 10) % 1) == (0, 0)


def test_tiles_that_were_not_imaged_well_move_no_section(write_sections, stack):
    errors = {}
    for lost in ("noted", "not noted"):
        _, _, metrics = stack(write_sections(MOVES, lost=lost), "rigid", name=lost)
        errors[lost] = [
            abs((section["rotation"] or 0) - move.rotation)
            for section, move in zip(metrics.figures["sections"], MOVES, strict=True)
        ]
    assert max(errors["noted"]) < 0.03
    assert max(errors["not noted"]) > 0.3


@pytest.mark.parametrize(
    ("dtype", "align"),
    [
        ("float32", "none"),
        ("uint16", "rigid"),
        pytest.param("float32", "translation", marks=pytest.mark.soak),
        pytest.param("float32", "rigid", marks=pytest.mark.soak),
        pytest.param("uint16", "none", marks=pytest.mark.soak),
        pytest.param("uint16", "translation", marks=pytest.mark.soak),
    ],
)
def test_the_bits_are_the_same_on_any_threads_and_blocks(
    write_sections, stack, monkeypatch, dtype, align
):
    sources = write_sections(MOVES, dtype=dtype)
    whole, _, metrics = stack(sources, align, name="whole", workers=1)
    assert whole.dtype == dtype
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 32)
    for workers in (1, 4):
        voxels, _, other = stack(sources, align, again=True, workers=workers)
        np.testing.assert_array_equal(voxels, whole)
        assert other.figures["sections"] == metrics.figures["sections"]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("uint16", marks=pytest.mark.soak)])
def test_moved_sections_are_blended_where_both_lie_on_any_threads_and_blocks(
    write_sections, stack, monkeypatch, dtype
):
    sources = write_sections(MOVES, dtype=dtype)
    plain, _, _ = stack(sources, "rigid", name="plain")
    whole, _, metrics = stack(sources, "rigid", name="whole", workers=1, blend=20)
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 32)
    for workers in (1, 4):
        voxels, _, other = stack(sources, "rigid", again=True, workers=workers, blend=20)
        np.testing.assert_array_equal(voxels, whole)
        assert other.figures["sections"] == metrics.figures["sections"]
    # These sections do not change along z: their deeper planes equal those above the border.
    expected = plain.astype(np.float64)
    for start in range(PLANES, len(plain), PLANES):
        above, below = expected[start - 1], expected[start : start + 2]
        weights = np.array([0.25, 0.75])[:, None, None]
        mean = (1 - weights) * above + weights * below
        expected[start : start + 2] = np.where((above != 0) & (below != 0), mean, below)
    np.testing.assert_allclose(whole, expected, atol=1 if dtype == "uint16" else 1e-3)


@pytest.mark.parametrize("third", [0.0, 3.0])
def test_a_rotation_that_tissue_shows_by_itself_is_not_undone(write_image, stack, third):
    tissue, sources = texture(SHAPE), []
    for number in range(1, 6):
        # Half a degree from plane to plane; no plane is imaged twice.
        turns = [0.5 * (PLANES * number + k) + third * (number == 3) for k in range(PLANES)]
        planes = np.stack([seen(tissue, Displacement(rotation=turn)) for turn in turns])
        attributes = {"kind": "section", "section": {"number": number, "thickness": 10.0 * PLANES}}
        name = f"section_{number:02d}.ome.zarr"
        sources.append(write_image(name, planes, spacing=(10.0,) * 3, attributes=attributes))
    _, _, metrics = stack(sources, "rigid")
    assert [s["moved"] for s in metrics.figures["sections"]] == [
        k == 3 and third > 0 for k in range(1, 6)
    ]


def test_moves_stand_in_a_table_in_the_metadata_and_in_the_picture(write_sections, stack, tmp_path):
    table = tmp_path / "moves.csv"
    _, image, metrics = stack(write_sections(MOVES), "rigid", table=table)
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["section"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [any(float(row[n]) for n in ("y", "x", "rotation")) for row in rows] == [
        *(False, True, False, True, False)
    ]
    assert all(rows[k][n] == rows[k][f"measured_{n}"] for k in (1, 3) for n in ("y", "rotation"))
    assert float(rows[1]["rotation"]) == pytest.approx(1.5, abs=0.03)
    noted = image.attributes["sections"]
    assert noted[1]["rotation"] == float(rows[1]["rotation"])
    assert noted[3]["rotation"] == pytest.approx(0, abs=0.03)
    assert noted[0]["shift"] == [0, 0]
    assert noted[1]["shift"] == [float(rows[1]["y"]), float(rows[1]["x"])]
    # Later steps read the sections as before.
    assert [s.start for s in read_sections(image.attributes, 25)] == [0, 5, 10, 15, 20]
    assert metrics.previews["unaligned_y"].shape == (25, SHAPE[1])


@pytest.fixture
def corrected(write_sections, stack, tmp_path):
    """Sections aligned once; returns them, the voxels, the image and the table."""
    sources, table = write_sections(MOVES), tmp_path / "moves.csv"
    voxels, image, _ = stack(sources, "rigid", table=table)
    return sources, voxels, image, table


@pytest.mark.parametrize(
    "align",
    [*(pytest.param(a, marks=pytest.mark.soak) for a in ("none", "translation")), "rigid"],
)
def test_a_table_of_displacements_fed_back_gives_the_same_bits(corrected, stack, tmp_path, align):
    sources, voxels, image, table = corrected
    written = tmp_path / "again.csv"
    again, moved, metrics = stack(sources, align, name="again", given=table, table=written)
    np.testing.assert_array_equal(again, voxels)
    assert moved.grid == image.grid
    assert moved.attributes["sections"] == image.attributes["sections"]
    assert all(section["given"] for section in metrics.figures["sections"])
    if align == "rigid":
        assert written.read_bytes() == table.read_bytes()


def test_a_table_of_a_stack_that_was_not_aligned_moves_nothing(write_sections, stack, tmp_path):
    sources, table = write_sections(MOVES), tmp_path / "moves.csv"
    voxels, image, _ = stack(sources, table=table)
    again, moved, _ = stack(sources, name="again", given=table)
    np.testing.assert_array_equal(again, voxels)
    assert moved.attributes == image.attributes
    # But it has what was measured.
    assert float(table.read_text().splitlines()[2].split(",")[4]) == pytest.approx(64, abs=1)


def test_one_row_that_is_changed_moves_one_section_alone_by_exactly_that(corrected, stack):
    sources, voxels, image, table = corrected
    lines = table.read_text().splitlines()
    assert lines[3].startswith("3,0.0,0.0,0.0,")
    table.write_text("\n".join([*lines[:3], "3,20,-10,0,,,,,", *lines[4:]]), encoding="utf-8")
    again, moved, metrics = stack(sources, "rigid", name="again", given=table)
    assert moved.grid == image.grid
    others = [*range(10), *range(15, 25)]
    np.testing.assert_array_equal(again[others], voxels[others])
    # Undone: what is shown at a place was imaged 2 voxels below and 1 to the left.
    np.testing.assert_allclose(again[10:15, :-2, 1:], voxels[10:15, 2:, :-1], rtol=1e-5)
    third = metrics.figures["sections"][2]
    assert (third["shift"], third["moved"], third["given"]) == ([20, -10], True, True)


def test_empty_rows_are_measured_and_given_ones_are_taken_however_small(corrected, stack):
    sources, voxels, _, table = corrected
    table.write_text("section,y,x,rotation\n2,,,\n5,0.5,0,0\n", encoding="utf-8")
    again, image, metrics = stack(sources, "rigid", name="again", given=table)
    np.testing.assert_array_equal(again[:20], voxels[:20])
    assert not np.array_equal(again[20:], voxels[20:])
    assert image.attributes["sections"][4]["shift"] == [0.5, 0]
    given = [section["given"] for section in metrics.figures["sections"]]
    assert given == [False, False, False, False, True]


def test_sections_that_the_user_placed_are_not_said_to_match_nothing(
    write_sections, stack, tmp_path
):
    moves = [IN_PLACE, IN_PLACE, Displacement(8, 8, 0), IN_PLACE, IN_PLACE]
    sources, table = write_sections(moves, odd=(3,)), tmp_path / "moves.csv"
    table.write_text("section,y,x,rotation\n3,80,80,0\n", encoding="utf-8")
    _, image, metrics = stack(sources, "rigid", given=table)
    assert metrics.warnings == []
    assert image.attributes["sections"][2]["shift"] == [80, 80]


def test_a_section_that_is_left_out_is_blank_and_needs_no_permission(
    write_section, stack, tmp_path
):
    sources, table = [write_section(n) for n in (1, 2, 4)], tmp_path / "moves.csv"
    table.write_text("section,y,x,rotation\n3,10,0,0\n", encoding="utf-8")
    by_hand, image, _ = stack(sources, name="by_hand", allow_missing_sections=1)
    voxels, own, metrics = stack(sources, given=table, excluded_sections="3 5-6")
    np.testing.assert_array_equal(voxels, by_hand)
    assert own.attributes == image.attributes
    assert metrics.figures["missing_sections"] == []
    assert metrics.figures["excluded_sections"] == [3, 5, 6]
    assert metrics.warnings == []
    with refused(table, "line 2", "section 3"):
        stack(sources, name="refused", given=table, allow_missing_sections=1)


def test_a_section_that_matches_nothing_stays_and_is_named(write_sections, stack):
    moves = [IN_PLACE, IN_PLACE, Displacement(8, 8, 0), IN_PLACE, IN_PLACE]
    _, _, metrics = stack(write_sections(moves, odd=(3,)), "rigid")
    assert metrics.warnings == [
        "Section 3 does not match any neighbour and will not be moved; look at the pictures."
    ]
    third = metrics.figures["sections"][2]
    assert (third["shift"], third["moved"]) == (None, False)


def test_a_stack_in_two_parts_that_do_not_match_is_named(write_sections, stack):
    _, _, metrics = stack(write_sections([IN_PLACE] * 5, odd=(4, 5)), "rigid")
    assert metrics.warnings == [
        "Sections 3 and 4 do not match: the stack is split there, and each part keeps its imaged "
        "position; look at the pictures."
    ]
    assert metrics.figures["remarks"] == metrics.warnings


TILE, PITCH, JITTER = 96, 76, 10
IMAGED = 2 * PITCH + TILE + 2 * JITTER


@pytest.fixture
def stitch_jittered(write_mosaic, tmp_path, reading, execution):
    """Stitch 3 x 3 tiles of a tissue, each up to 10 pixels of 5 um off its place."""

    def stitch(number, tissue, rng):
        mosaic, rows = np.zeros((2, 3 * TILE, 3 * TILE), np.float32), []
        for row, column in np.ndindex(3, 3):
            y, x = PITCH * np.array([row, column]) + rng.integers(0, 2 * JITTER + 1, 2)
            here = slice(row * TILE, (row + 1) * TILE), slice(column * TILE, (column + 1) * TILE)
            for plane in mosaic:
                plane[here] = speckled(tissue[y : y + TILE, x : x + TILE], 4, rng)
            rows.append(f"{number},{row},{column},{5 * y},{5 * x}\n")
        name = f"section_{number:02d}.ome.zarr"
        source = write_mosaic(name, mosaic, (2, TILE, TILE), (5.0,) * 3)
        table, made = tmp_path / f"{number}.csv", tmp_path / "stitched" / name
        table.write_text(f"section,row,column,y,x\n{''.join(rows)}")
        stitch_section(source, made, StitchParameters(), reading, execution, table)
        return made

    return stitch


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))]
)
def test_neither_an_outline_nor_the_border_of_what_was_imaged_moves_a_section(
    stitch_jittered, stack, seed
):
    rng = np.random.default_rng(seed)
    tissues = [ellipse((IMAGED, IMAGED), k) for k in (seed, seed, 100 + seed)]
    sources = [stitch_jittered(k, tissue, rng) for k, tissue in enumerate(tissues, 1)]
    figures = stack(sources[1:], "translation", name="unlike")[2].figures
    assert [s["moved"] for s in figures["sections"]] == [False, False]
    found = check_subject([], {}, StackFigures.model_validate(figures), None)
    (check,) = (check for check in found if check.name == "Section alignment")
    assert check.state == "warning"
    assert "Sections 2 and 3: no structure in common" in check.sentence
    figures = stack(sources[:2], "translation", name="like")[2].figures
    for section in figures["sections"]:
        assert section["shift"] == pytest.approx((0, 0), abs=0.5)


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 3, 7, 8))]
)
def test_the_border_of_what_was_imaged_is_no_structure(stitch_jittered, stack, seed):
    rng, even = np.random.default_rng(seed), np.ones((IMAGED, IMAGED))
    sources = [stitch_jittered(k, even, rng) for k in (1, 2)]
    figures = stack(sources, "rigid")[2].figures
    assert [s["shift"] for s in figures["sections"]] == [None, None]
    assert figures["unlike"] == [[1, 2]]


def test_one_section_alone_and_blank_ones_are_stacked(write_sections, stack):
    voxels, _, metrics = stack(write_sections(MOVES[1:2]), "rigid")
    assert voxels.shape == (PLANES, *SHAPE)
    assert metrics.figures["sections"][0]["shift"] is None
    voxels, _, _ = stack(write_sections(MOVES, scale=0), "rigid", again=True)
    assert not voxels.any()


def test_pixels_that_are_not_square_are_refused_before_any_work(write_sections, stack, tmp_path):
    sources = write_sections([IN_PLACE] * 2, spacing=(10.0, 10.0, 12.0))
    with refused("--stack_align", "10", "12", "--resolution"):
        stack(sources, "rigid")
    assert not (tmp_path / "out").exists()
    assert stack(sources, "none")[2].figures["sections"][0]["shift"] is None


def test_a_rotation_is_noted_about_the_middle_of_the_volume(write_sections, stack, monkeypatch):
    turned = Displacement(0, 0, 5)
    monkeypatch.setattr(facing, "FACE_EDGES", {"rigid": 24})  # 150 x 180 voxels in 18 x 22 pixels
    monkeypatch.setattr(facing, "solve_displacements", lambda *_: [IN_PLACE, turned])
    monkeypatch.setattr(facing, "measure_pairs", lambda *_, **__: [SectionPair(0, 1, turned, 0.9)])
    _, image, _ = stack(write_sections([IN_PLACE, turned]), "rigid")
    assert min(np.subtract(image.grid.shape[1:], SHAPE)) >= 20  # room for its corners
    noted = image.attributes["sections"][1]
    y, x = Displacement(*noted["shift"], noted["rotation"]).apply(
        np.array(720.0), np.array(880.0), (750, 900)
    )
    assert (y, x) == pytest.approx((720, 880), abs=0.01)
