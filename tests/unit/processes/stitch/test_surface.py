"""Surface of a section: found where it is, named where it is not, never guessed."""

from itertools import count

import numpy as np
import pytest
from scipy.optimize import curve_fit
from uneven_sections import UnevenParameters, render_tile, surfaces

from octane.compare.columns import columns
from octane.core.geometry import vector
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement
from octane.processes.phantom.step import Subject
from octane.processes.stitch import surface
from octane.processes.stitch.surface import fit_surface, measure_surface

PHANTOM = {
    "tiles": 3,
    "tile_shape": (32, 64, 64),
    "voxel_size": 10,
    "sections": 2,
    "section_thickness": 200,
    "edge_fraction": 0,
    "surface": 80,
    "speckle_looks": 1,
}


def measured(change=None, seed=1, *, dark=0.0, **given):
    """Surface of a phantom's first section, whose tiles are changed, and the true one."""
    p = UnevenParameters.model_validate({**PHANTOM, "seed": seed, **given})
    subject, spacing = Subject.of(p), vector(*p.voxel_size)
    depth, height, width = p.tile_shape
    shape = (depth, p.tiles[0] * height, p.tiles[1] * width)
    extent = vector(*np.multiply(shape, spacing))
    grid = MosaicGrid(
        shape,
        (depth, height, width),
        spacing,
        vector(0, 0, 0),
        vector(*subject.tile_extent),
        extent,
        subject.pitch,
    )
    positions = grid.positions(subject.pitch)
    profiles = {}
    for tile, place in positions.items():
        voxels = render_tile(p, 0, tile, p.tile_shape, place)
        profiles[tile] = columns(voxels if change is None else change(voxels))
    found = measure_surface(profiles, TilePlacement(grid, positions), dark=dark)
    return found, surfaces(p)[0], spacing[0]


def require_true(found, true, spacing, depth=0.15, tilt=0.1):
    """Assert that the depth (voxels) and tilt (degrees) are true within limits."""
    assert found.reason == ""
    assert abs(found.depth - true.depth) < depth * spacing
    assert np.abs(np.subtract(found.tilt, true.tilt)).max() < tilt


def layer(start, stop, factor):
    """Planes of a tile multiplied by a factor."""

    def changed(voxels):
        voxels[start:stop] *= factor
        return voxels

    return changed


def hole(voxels):
    """Water to below the surface, in part of each tile."""
    voxels[:18, :28, :28] = 10
    return voxels


def film(voxels):
    """Agarose over domed tissue: it is thinner in the middle of a tile."""
    y, x = np.ogrid[-1:1:64j, -1:1:64j]
    top = 12 + 10 * (y**2 + x**2)
    z = np.arange(len(voxels))[:, None, None]
    return np.where(z < top, 0.1 * voxels + 9, voxels)


def water(voxels):
    return np.random.default_rng(1).gamma(1, 10, voxels.shape).astype(np.float32)


@pytest.mark.parametrize(
    ("voxel", "looks"),
    [
        *(((3.5, 4, 4), 1), (10, 0), (25, 1)),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (((3.5, 4, 4), 0), (10, 1), (25, 0))
        ),
    ],
)
def test_depth_and_tilt_are_found(voxel, looks):
    size = np.atleast_1d(voxel)[0]
    given = {"voxel_size": voxel, "surface": 9 * size, "section_thickness": 20 * size}
    for seed in (1, 2):
        found = measured(seed=seed, surface_jitter=size, tilt=0.8, speckle_looks=looks, **given)
        require_true(*found)
    (own, true, _) = found
    # The errors are of the size that it states.
    assert abs(own.depth - true.depth) < 5 * own.depth_std + 0.03 * size
    assert own.tilt_std is not None
    assert max(own.tilt_std) < 0.05
    assert own.used > 0.7 * own.columns


@pytest.mark.parametrize(
    "change",
    [
        lambda v: (v + 100).astype("u2"),
        lambda v: (-v).astype("i2"),
        lambda v: np.where(v < 30, 0, v),
        lambda v: v + np.random.default_rng(0).exponential(20, v.shape),
        lambda v: np.where(np.arange(64) < 8, np.nan, v),
        hole,
        film,
        # A cover glass above the tissue, and a layer of fibres in it.
        layer(1, 3, 300),
        layer(14, 18, 1.8),
    ],
    ids=["u2", "negative", "zeros", "floor", "nan", "hole", "film", "glass", "fibres"],
)
def test_a_plain_surface_is_found_in_spite_of(change):
    require_true(*measured(change, tilt=0.3))


def test_a_surface_is_found_below_a_bright_line_and_where_tiles_are_rolled():
    require_true(*measured(layer(8, 9, 4)))
    number = count()
    require_true(*measured(lambda v: np.roll(v, 4 if next(number) % 4 == 0 else 0, axis=0)))


def test_blurred_and_fading_tissue_has_its_surface_where_it_was():
    from scipy.ndimage import gaussian_filter1d

    require_true(*measured(lambda v: gaussian_filter1d(v, 1, axis=0)))
    # The level below the surface is that of the third plane, where less light is left.
    require_true(*measured(attenuation=5, scattering=5, tilt=0.5), depth=0.25)


@pytest.mark.parametrize(
    ("reason", "change", "given"),
    [
        (surface.WITHIN, None, {"surface": 0}),
        (surface.WITHIN, None, {"surface": 6}),
        # A flat layer of fibres in tissue.
        (surface.WITHIN, layer(12, 32, 1.8), {"surface": 0}),
        (surface.NO_LIGHT, lambda v: v * 0, {}),
        (surface.NO_LIGHT, lambda v: v * np.nan, {}),
        (surface.NO_CONTRAST, water, {}),
        (surface.LINE_ONLY, lambda v: layer(2, 4, 100)(water(v)), {}),
        (surface.SHALLOW, None, {"tile_shape": (4, 64, 64), "surface": 20}),
        (surface.FEW, None, {"tile_shape": (32, 16, 16), "tiles": 1}),
        ("two surfaces, ", layer(16, 32, 4), {}),
        ("surface above the first planes over", None, {"surface": 30, "tilt": 5}),
        ("surface below the last planes over", None, {"surface": 290, "tilt": 2}),
    ],
)
def test_what_is_not_measured_has_a_reason(reason, change, given):
    found, *_ = measured(change, **given)
    assert found.reason.startswith(reason)
    assert (found.depth, found.tilt, found.depth_std, found.tilt_std) == (None,) * 4


@pytest.mark.parametrize("looks", [1, 4, 0])
@pytest.mark.parametrize("reach", [4, 8, 20])
def test_light_that_fades_in_towards_the_focus_is_no_surface(looks, reach):
    fade = 1 - 0.8 * np.exp(-np.arange(32) / reach)[:, None, None]
    found, *_ = measured(lambda v: v * fade, surface=0, speckle_looks=looks)
    assert found.reason in (surface.DISAGREE, surface.WITHIN)
    # Uniform tissue does not show that no water lies above it.
    generator = np.random.default_rng(1)
    found, *_ = measured(lambda v: generator.gamma(looks or 100, 60, v.shape) * fade)
    assert found.reason in (surface.DISAGREE, surface.SLOW)


def test_single_columns_agree_with_scipy_fits_of_a_step():
    generator = np.random.default_rng(3)
    planes = np.arange(24)
    places = generator.uniform(-300, 300, (200, 2))
    # Flat profiles, which the fitted step describes exactly.
    true = 10.3 + places @ (0.004, -0.002)
    values = 10 + 500 * np.clip(planes + 1 - true[:, None], 0, 1)
    values *= generator.gamma(64, 1 / 64, values.shape)

    def step(z, depth, low, high):
        return low + (high - low) * np.clip(z + 1 - depth, 0, 1)

    # It starts at the truth: elsewhere it may end in another minimum.
    starts = ((depth, 10, 510) for depth in true)
    fits = [curve_fit(step, planes, *own)[0][0] for own in zip(values, starts, strict=True)]
    design = np.column_stack([np.ones(200), places])
    peer, *_ = np.linalg.lstsq(design, fits, rcond=None)
    found = fit_surface(values, places, 10.0)
    assert found.depth is not None
    assert found.tilt is not None
    assert abs(found.depth / 10 - peer[0]) < 0.05
    assert abs(found.depth / 10 - 10.3) < 0.05
    # Planes per micrometre are ten times as many micrometres.
    np.testing.assert_allclose(np.tan(np.deg2rad(found.tilt)), 10 * peer[1:], atol=0.002)
    assert found.used <= found.columns == 200


def test_columns_in_a_line_do_not_make_a_plane():
    values = np.repeat([[10.0] * 8 + [500.0] * 16], 60, axis=0)
    places = np.column_stack([np.zeros(60), np.arange(60.0)])
    assert fit_surface(values, places, 10.0).reason == surface.FEW
    # Nor do those that rise, if they lie in a line.
    places = np.column_stack([np.arange(60) // 12, np.arange(60) % 12]) * 80.0
    values[12:] = 300
    assert fit_surface(values, places, 10.0).depth is None


@pytest.mark.parametrize(("height", "reason"), [(0.02, ""), (8.0, surface.DISAGREE)])
def test_the_top_of_a_brain_is_not_cut(height, reason):
    y, x = np.mgrid[-12:12, -12:12].reshape(2, -1) / 12
    distance = np.hypot(y, x)
    depth = np.where(distance < 0.8, 6 + height * distance**2, 32)
    values = 10 + 500 * np.clip(np.arange(32) + 1 - depth[:, None], 0, 1)
    found = fit_surface(values, np.column_stack([y, x]) * 500, 10.0)
    assert found.reason == reason
