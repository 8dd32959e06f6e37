"""STACK: sections at their depth, boundaries recorded, gaps never silent."""

from itertools import pairwise

import numpy as np
import pytest

from octane.config.params import ExecutionParameters, StackParameters
from octane.core.errors import OctaneError
from octane.steps.stack import stack_sections
from octane.store import writer
from octane.store.image import open_image
from octane.store.sections import read_sections


@pytest.fixture
def stack(tmp_path, reading, execution):
    """Stack into ``out/stack.ome.zarr``; gives the image and the metrics."""

    def run(sources, *, execution=execution, **settings):
        destination = tmp_path / "out" / "stack.ome.zarr"
        parameters = StackParameters(**settings)
        metrics = stack_sections(sources, destination, parameters, reading, execution)
        return open_image(destination), metrics

    return run


@pytest.fixture
def write_section(write_image):
    """A section on a grid of 10 um; 8 planes unless other voxels are given."""

    def write(number, voxels=None, *, edge=(0.0, 0.0, 0.0), **section):
        if voxels is None:
            voxels = np.full((8, 6, 7), number, np.float32)
        noted = {"kind": "section", "section": {"number": number, **section}}
        name = f"section_{number:02d}.ome.zarr"
        return write_image(name, voxels, edge=edge, attributes=noted)

    return write


def planes(image):
    """The value of each plane, which is one all over it."""
    voxels = image.array.opened[:]
    assert (voxels == voxels[:, :1, :1]).all()
    return voxels[:, 0, 0].tolist()


def boundaries(image):
    return [(s.start, s.stop) for s in read_sections(image.attributes, image.grid.shape[0])]


def test_sections_lie_on_top_of_each_other_in_the_order_of_their_numbers(write_section, stack):
    sources = [write_section(n, thickness=50.0) for n in (10, 9, 11)]
    image, metrics = stack(sources)
    assert planes(image) == [9] * 5 + [10] * 5 + [11] * 5
    assert boundaries(image) == [(0, 5), (5, 10), (10, 15)]
    assert image.grid.origin == (5.0, 5.0, 5.0)
    assert image.attributes["kind"] == "volume"
    assert [s["name"] for s in metrics.figures["sections"]] == [
        f"section_{n:02d}.ome.zarr" for n in (9, 10, 11)
    ]


@pytest.mark.parametrize("thickness", [25.0, 33.0, 47.5, 56.7])
@pytest.mark.parametrize("count", [1, 5])
def test_a_thickness_need_not_be_a_multiple_of_the_voxel(write_section, stack, thickness, count):
    # Each plane says how deep it was imaged, so that the stack must say its depth throughout.
    depth = ((np.arange(8) + 0.5) * 10).astype(np.float32)
    voxels = np.broadcast_to(depth[:, None, None], (8, 4, 4))
    sources = [write_section(n, voxels, thickness=thickness) for n in range(1, count + 1)]
    image, metrics = stack(sources)
    total = image.grid.shape[0]
    assert abs(total * 10 - count * thickness) <= 5 + 1e-6
    found = boundaries(image)
    assert found[0][0] == 0
    assert found[-1][1] == total
    assert all(a[1] == b[0] for a, b in pairwise(found))
    for number, (start, stop) in enumerate(found):
        centres = (np.arange(start, stop) + 0.5) * 10 - number * thickness
        # A plane in the topmost half voxel lies above the first one imaged, whose value it has.
        np.testing.assert_allclose(planes(image)[start:stop], np.maximum(centres, 5), rtol=1e-5)
        assert centres.min() > -1e-6
        assert centres.max() <= thickness + (1e-6 if number + 1 < count else 5)
    assert metrics.warnings == []


@pytest.mark.parametrize(
    ("noted", "given", "expected"),
    [
        ({"thickness": 50.0}, {"section_thickness": 30.0}, [1] * 3 + [2] * 3),
        # The full depth.
        ({}, {}, [1] * 8 + [2] * 8),
        ({"thickness": 100.0}, {}, [1] * 8 + [0] * 2 + [2] * 8 + [0] * 2),
    ],
    ids=["given", "unknown", "beyond the imaged depth"],
)
def test_the_thickness_is_the_one_given_or_noted_or_the_depth(
    write_section, stack, noted, given, expected
):
    image, metrics = stack([write_section(n, **noted) for n in (1, 2)], **given)
    assert planes(image) == expected
    assert ["--section-thickness" in warning for warning in metrics.warnings] == [True] * (
        0 in expected
    )


def test_an_allowed_gap_is_a_blank_slab_and_listed(write_section, stack):
    sources = [write_section(n, thickness=50.0) for n in (1, 2, 4)]
    image, metrics = stack(sources, allow_missing_sections=1)
    assert planes(image) == [1] * 5 + [2] * 5 + [0] * 5 + [4] * 5
    assert boundaries(image) == [(0, 5), (5, 10), (10, 15), (15, 20)]
    noted = read_sections(image.attributes, 20)
    assert [(s.number, s.missing) for s in noted] == [(1, False), (2, False), (3, True), (4, False)]
    assert metrics.figures["missing_sections"] == [3]
    assert "Sections 3 are missing" in metrics.warnings[0]
    # The middle plane is blank; the picture for the report is of the imaged plane beside it.
    assert (metrics.previews["slice_z"] == 2).all()
    np.testing.assert_array_equal(metrics.previews["slice_x"], image.array.opened[:, :, 3])
    assert metrics.previews["slice_spacing"].tolist() == [10.0] * 3


@pytest.mark.parametrize(
    ("names", "other", "settings", "words"),
    [
        ("1", "f4", {"section_thickness": 0.2}, r"--section-thickness 0\.2 .*micrometre"),
        ("1 2", "f4", {"section_thickness": 81}, "more than the 80 micrometre .* leave it out"),
        ("1 2", "u2", {}, "2.* is uint16"),
        ("1 again_1", "f4", {}, "again_1.* and .*1.ome.zarr are both section 1"),
        ("1 brain", "f4", {}, "brain.* has no number in its name"),
        ("1 2 5", "f4", {}, "lacks section 3, 4 of 1 to 5.*--allow-missing-sections 2"),
        ("1 99", "f4", {}, "lacks section 2, 3, .*, 17 and 81 more of 1 to 99"),
        ("1 2 5", "f4", {"allow_missing_sections": 1}, "lacks section 3, 4"),
    ],
)
def test_sections_that_do_not_fit_together_are_refused(
    write_image, stack, tmp_path, names, other, settings, words
):
    # The last one may be of another type.
    types = ["f4"] * names.count(" ") + [other]
    sources = [
        write_image(f"{name}.ome.zarr", np.ones((8, 6, 7), dtype))
        for name, dtype in zip(names.split(), types, strict=True)
    ]
    with pytest.raises(OctaneError, match=words):
        stack(sources, **settings)
    assert not (tmp_path / "out").exists()


def test_a_section_alone_needs_no_number(write_image, stack):
    image, _ = stack([write_image("brain.ome.zarr", np.ones((8, 6, 7), np.float32))])
    assert [s.number for s in read_sections(image.attributes, 8)] == [1]


def test_sections_lie_where_they_were_imaged(write_section, stack):
    sources = [write_section(1), write_section(2, edge=(0.0, 20.0, -10.0))]
    image, _ = stack(sources)
    assert image.grid.edge == pytest.approx((0.0, 0.0, -10.0))
    assert image.grid.shape == (16, 8, 8)
    expected = np.zeros((16, 8, 8))
    expected[:8, :6, 1:] = 1
    expected[8:, 2:, :7] = 2
    np.testing.assert_array_equal(image.array.opened[:], expected)


@pytest.mark.parametrize(("x", "named"), [(50.0, False), (70.0, True)])
def test_sections_beside_each_other_are_named(write_section, stack, x, named):
    sources = [write_section(1), write_section(2, edge=(0.0, 0.0, x)), write_section(3)]
    (*warned,) = stack(sources)[1].warnings
    assert ["Sections 2, 3 lie beside" in line for line in warned] == [True] * named


def test_sections_between_voxels_are_interpolated(write_section, stack):
    ramp = np.broadcast_to(((np.arange(12) + 0.5) * 10).astype(np.float32), (8, 6, 12)).copy()
    sources = [write_section(1, ramp), write_section(2, ramp + 4, edge=(0.0, 0.0, 4.0))]
    image, _ = stack(sources)
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
    whole = stack(sources)[0].array.opened[:]
    monkeypatch.setattr(writer, "CHUNK", 4)
    monkeypatch.setattr(writer, "SHARD", 8)
    image, _ = stack(sources, execution=ExecutionParameters(backend="cpu", overwrite=True))
    assert image.array.shards == (8, 8, 8)
    np.testing.assert_array_equal(image.array.opened[:], whole)


def test_complex_sections_are_stacked_and_compared_by_modulus(write_section, stack):
    sources = [write_section(n, np.full((8, 6, 7), n * 1j, np.complex64)) for n in (1, 2)]
    image, metrics = stack(sources)
    assert planes(image) == [1j] * 8 + [2j] * 8
    assert (metrics.previews["slice_x"][:, 0] == [1] * 8 + [2] * 8).all()


def test_a_voxel_that_is_no_number_hides_no_dark_section(write_section, stack, rng):
    voxels = np.repeat(rng.random((1, 6, 7), np.float32), 8, axis=0)
    lacking = voxels.copy()
    lacking[0, 0, 0] = np.nan
    _, metrics = stack([write_section(1, lacking), write_section(2, 4 * voxels)])
    found = [s["brightness"] for s in metrics.figures["sections"]]
    assert found == pytest.approx([0.25, 4], rel=0.2)
