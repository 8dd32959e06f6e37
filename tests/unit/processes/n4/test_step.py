"""N4 end to end: equal to SimpleITK, identical for any blocks, and refusals."""

import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
from n4_volumes import simpleitk

from octane.config.parameters import ExecutionParameters, LeaseParameters
from octane.core.errors import OctaneError
from octane.gpu.device import CupyDevice
from octane.gpu.run import Share
from octane.processes.n4 import inputs, plan
from octane.processes.n4 import step as step_n4
from octane.processes.n4.fit import shrink_slices
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.step import correct_bias, prepare
from octane.store import volumes
from octane.store import writer as store_writer
from octane.store.image import open_image
from octane.store.volumes import open_volume

SHAPE = (26, 37, 44)
STARTS = (0, 9, 18)
SECTIONS = [slice(0, 9), slice(9, 18), slice(18, 26)]
QUICK = {"shrink_factor": 2, "iterations": (8, 8)}
Z, Y, X = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")


@pytest.fixture(scope="module")
def true_field():
    return np.exp(0.4 * (0.7 * X - 0.5 * Y + 0.4 * Z * X)).astype(np.float32)


@pytest.fixture(scope="module")
def true_tissue():
    tissue = np.where((X / 0.8) ** 2 + (Y / 0.8) ** 2 + (Z / 1.4) ** 2 < 1, 500.0, 30.0)
    return np.where((X / 0.4) ** 2 + (Y / 0.3) ** 2 < 1, 800.0, tissue).astype(np.float32)


@pytest.fixture(scope="module")
def biased(true_field, true_tissue):
    """Tissue, field and some noise."""
    noise = 1 + 0.03 * np.random.default_rng(5).standard_normal(SHAPE)
    return (true_field * true_tissue * noise).astype(np.float32)


@pytest.fixture
def volume(write_image, biased):
    return write_image("volume.ome.zarr", biased, attributes={"kind": "volume", "step": "stack"})


@pytest.fixture
def write_tiff(tmp_path):
    """Write an OME-TIFF, compressed with LZW, of the volume's grid, its origin left out."""

    def write(name, voxels, z=10):
        sizes = {"PhysicalSizeX": 10, "PhysicalSizeY": 10, **({"PhysicalSizeZ": z} if z else {})}
        tifffile.imwrite(
            tmp_path / name, voxels, ome=True, compression="lzw", photometric="minisblack",
            metadata={"axes": "ZYX", **sizes},
        )  # fmt: skip
        return tmp_path / name

    return write


@pytest.fixture
def correct(tmp_path, reading, execution):
    """Correct into ``out/<name>``; returns the path and the metrics."""

    def run(source, name="n4.ome.zarr", *, execution=execution, field=None, truth=None, **settings):
        destination = tmp_path / "out" / name
        parameters = N4Parameters.model_validate({**QUICK, **settings})
        more = {"save_bias_field": field, "truth": truth}
        prepared = prepare(source, destination, parameters, reading, execution, **more)
        metrics = correct_bias(prepared, LeaseParameters())
        return destination, metrics

    return run


def noted(starts, blank=()):
    """Attributes of a stack whose sections begin at these planes."""
    sections = [
        {"name": f"s{n}", "number": n, "start": a, "stop": b, "missing": n in blank}
        for n, (a, b) in enumerate(zip(starts, (*starts[1:], SHAPE[0]), strict=True), start=1)
    ]
    return {"kind": "volume", "step": "stack", "sections": sections}


def read(path):
    volume = open_volume(path)
    return volume.read(tuple(slice(0, n) for n in volume.grid.shape))


def refused(correct, source, words, tmp_path, **settings):
    with pytest.raises(OctaneError, match=words) as caught:
        correct(source, **settings)
    assert not list(tmp_path.glob("out/*"))
    return str(caught.value)


def test_how_brightness_jumps_from_section_to_section_is_noted_of_the_result(
    write_image, true_tissue, correct, monkeypatch
):
    monkeypatch.setattr(store_writer, "CHUNK", 8)
    monkeypatch.setattr(store_writer, "SHARD", 16)
    banded = true_tissue.copy()
    banded[9:18] *= 0.8
    source = write_image("v.ome.zarr", banded, attributes=noted(STARTS))
    given = {"iterations": (0,), "mask": "tissue"}
    _, plain = correct(source, **given)
    assert plain.figures["boundaries"] == pytest.approx({2: 0.8, 3: 1.25}, abs=0.03)
    _, matched = correct(source, "m.ome.zarr", **given, histogram_matching="section")
    assert matched.figures["boundaries"] == pytest.approx({2: 1, 3: 1}, abs=0.03)
    _, one = correct(write_image("one.ome.zarr", banded), "one.ome.zarr", **given)
    assert one.figures["boundaries"] == {}


def test_a_gain_along_z_leaves_no_step_where_sections_are_blended(
    write_image, true_tissue, correct, rng
):
    depth = np.concatenate([np.arange(own.stop - own.start) for own in SECTIONS])
    weights = np.where(np.arange(SHAPE[0]) < 9, 1.0, np.clip((depth + 0.5) / 3, 0, 1))
    speckle = rng.gamma(16.0, 1 / 16, (2, *SHAPE))
    parts = [
        (share * np.exp(-0.06 * z))[:, None, None] * noise
        for share, z, noise in zip((weights, 1 - weights), (depth, depth + 9), speckle, strict=True)
    ]
    voxels = (true_tissue[13] * np.sum(parts, axis=0)).astype(np.float32)
    attributes = noted(STARTS)
    attributes["sections"] = [
        {**own, "blended": 30.0 * (own["number"] > 1)} for own in attributes["sections"]
    ]
    source = write_image("v.ome.zarr", voxels, attributes=attributes)
    given = {"iterations": (0,), "mask": "tissue", "shrink_factor": 1}
    _, plain = correct(source, **given)
    _, gained = correct(source, "g.ome.zarr", **given, z_profile_gain=True)
    jumps = [[abs(np.log(j)) for j in m.figures["boundaries"].values()] for m in (plain, gained)]
    assert min(jumps[0]) > 0.1
    assert max(jumps[1]) < 0.05


@pytest.mark.parametrize(
    ("own", "asked"),
    [("uint8", "input"), ("uint16", "input"), ("int16", "input"), ("uint16", "float32")],
)
def test_the_field_divides_the_volume_and_integers_are_rounded(
    write_image, biased, correct, tmp_path, own, asked
):
    voxels = np.minimum(biased, 250).astype(own)
    source, field = write_image("v.ome.zarr", voxels), tmp_path / "field.ome.zarr"
    path, metrics = correct(source, field=field, dtype=asked)
    result = read(path)
    assert any("clipped; give --n4_dtype" in w for w in metrics.warnings) is (own == "uint8")
    assert result.dtype == (own if asked == "input" else asked)
    assert read(field).dtype == np.float32
    assert open_image(field).grid == open_image(source).grid
    exact = voxels / read(field).astype(np.float64)
    if asked == "input":
        exact = np.minimum(exact, np.iinfo(own).max)
    assert np.abs(result - exact).max() <= (0.5 if asked == "input" else 0) + 1e-4


def by_simpleitk(voxels, mask=None, shrink=(2, 2, 2), iterations=(8, 8), **options):
    """SimpleITK's own N4, applied."""
    found = simpleitk(voxels, mask, shrink, iterations, **options)
    return voxels / np.exp(found.field.astype(np.float64))


@pytest.mark.parametrize(
    ("suffix", "masked"),
    [
        (".ome.zarr", False),
        (".nii.gz", True),
        pytest.param(".ome.zarr", True, marks=pytest.mark.soak),
        pytest.param(".mha", False, marks=pytest.mark.soak),
    ],
)
def test_it_equals_simpleitk(write_image, write_file, correct, biased, true_tissue, suffix, masked):
    write = write_image if suffix == ".ome.zarr" else write_file
    mask = (true_tissue > 100).astype(np.uint8) if masked else None
    given = str(write(f"mask{suffix}", mask)) if masked else None
    iterations = (20, 20, 20)
    path, _ = correct(
        write(f"volume{suffix}", biased), f"n4{suffix}", mask=given, iterations=iterations
    )
    result = read(path)
    errors = [
        np.abs(result / by_simpleitk(biased, mask, iterations=iterations, threads=n) - 1)
        for n in (1, 3)
    ]
    nearest = min(errors, key=np.median)
    # ITK's own difference with another number of threads; see n4/test_simpleitk.py.
    assert np.median(nearest) <= 1e-4
    assert nearest.max() <= 4e-4


def test_a_file_is_read_once_and_not_for_a_plan(
    write_file, correct, biased, true_tissue, files_read_once, reading, execution, tmp_path
):
    source = write_file("v.nii.gz", biased)
    prepare(source, tmp_path / "o.ome.zarr", N4Parameters(), reading, execution)
    assert files_read_once == []
    mask = write_file("mask.nii", (true_tissue > 100).astype(np.uint8))
    _, metrics = correct(source, "n4.mha", mask=str(mask))
    assert files_read_once == ["v.nii.gz", "mask.nii"]
    assert metrics.warnings == []
    assert metrics.timeline.seconds()["read"] > 0
    assert metrics.figures["voxel_size"] == pytest.approx([40.0, 30.0, 25.0], rel=1e-6)


def cut_small(monkeypatch):
    """Blocks and shards of 16; the volume would otherwise be one of each."""
    for module in (inputs, plan):
        monkeypatch.setattr(module, "READ_BLOCK", 16)
    for module in (store_writer, volumes):
        monkeypatch.setattr(module, "CHUNK", 8)
        monkeypatch.setattr(module, "SHARD", 16)


@pytest.mark.parametrize(
    ("suffix", "dtype", "settings"),
    [
        (".ome.zarr", "float32", {}),
        (".tif", "uint16", {}),
        (".mha", "float32", {"mode": "per_section", "z_profile_gain": True}),
        (".ome.zarr", "uint16", {"mode": "two_pass", "histogram_matching": "section"}),
    ],
)
def test_many_blocks_give_the_bits_of_one(
    request, correct, biased, tmp_path, monkeypatch, suffix, dtype, settings
):
    writers = {".ome.zarr": "write_image", ".mha": "write_file", ".tif": "write_tiff"}
    write = request.getfixturevalue(writers[suffix])
    source = write(f"v{suffix}", biased.astype(dtype))
    given = {"mask": "tissue", "section_starts": STARTS, **settings}
    fields = [tmp_path / f"field_{n}.ome.zarr" for n in ("one", "many")]
    one, _ = correct(source, f"one{suffix}", field=fields[0], **given)
    cut_small(monkeypatch)
    more = ExecutionParameters(backend="cpu", workers=4)
    many, metrics = correct(source, f"many{suffix}", field=fields[1], execution=more, **given)
    np.testing.assert_array_equal(read(many), read(one))
    np.testing.assert_array_equal(*map(read, fields))
    alone, _ = correct(source, f"alone{suffix}", execution=more, **given)
    np.testing.assert_array_equal(read(alone), read(one))
    assert metrics.bytes["read"] == biased.astype(dtype).nbytes
    assert metrics.bytes["written"] == biased.astype(dtype).nbytes + biased.size * 4


def test_the_tissue_is_found_section_by_section(write_image, correct, true_tissue):
    # The second section is dimmer than the first one's background; the third is a blank slab.
    voxels = true_tissue.copy()
    voxels[10:18] /= 50
    voxels[18:] = 0
    source = write_image("v.ome.zarr", voxels, attributes=noted((0, 10, 18), blank=(3,)))
    _, metrics = correct(source, mask="tissue")
    expected = true_tissue > 100
    expected[18:] = False
    expected = expected[shrink_slices(SHAPE, (2, 2, 2))]
    assert metrics.figures["mask_fraction"] == pytest.approx(expected.mean(), rel=0.15)


@pytest.mark.parametrize(("value", "at"), [(np.nan, (3, 20, 41)), (-np.inf, (25, 36, 43))])
def test_a_value_that_is_not_finite_is_an_error_that_names_it(
    write_image, biased, correct, tmp_path, monkeypatch, value, at
):
    cut_small(monkeypatch)
    voxels = biased.copy()
    voxels[at] = value
    source = write_image("v.ome.zarr", voxels, attributes=noted(STARTS))
    words = refused(correct, source, "NaN or Inf", tmp_path, shrink_factor=4)
    assert f"first at z y x {' '.join(map(str, at))}, in s{1 + at[0] // 9}" in words
    assert str(source) in words
    assert "--n4_nonfinite mask" in words


def test_values_that_are_not_finite_are_left_out_where_that_is_wanted(
    write_image, biased, correct, tmp_path
):
    voxels = biased.copy()
    voxels[5:9, 10:20, 10:20] = np.nan
    voxels[20, 20, 20] = np.inf
    source = write_image("v.ome.zarr", voxels)
    given = {"nonfinite": "mask", "mask": "tissue"}
    path, metrics = correct(source, field=tmp_path / "field.ome.zarr", **given)
    result, field = read(path), read(tmp_path / "field.ome.zarr")
    assert metrics.warnings[0] == "Excluded from the fit: 50 voxels of NaN or Inf."
    assert np.isfinite(field).all()
    finite = np.isfinite(voxels)
    np.testing.assert_array_equal(np.isfinite(result), finite)
    np.testing.assert_allclose((field * result)[finite], voxels[finite], rtol=1e-6)
    assert np.isfinite([metrics.figures["cv_before"], metrics.figures["cv_after"]]).all()


def test_figures_against_the_truth(
    volume, biased, write_image, correct, true_tissue, true_field, tmp_path
):
    write_image("truth/tissue.ome.zarr", true_tissue)
    write_image("truth/bias.ome.zarr", true_field)
    truth = tmp_path / "truth"
    other = write_image("other.ome.zarr", biased[:20])
    refused(correct, other, "--truth_resolution", tmp_path, truth=truth)
    _, metrics = correct(volume, mask="tissue", truth=truth, iterations=(50, 50, 50))
    figures = metrics.figures["truth"]
    assert figures["field_correlation"] > 0.95
    # The noise contributes 0.03.
    assert figures["cv_against_truth_before"] > 0.12
    assert 0.025 < figures["cv_against_truth_after"] < 0.08
    assert metrics.previews["true_field_z"].shape == metrics.previews["field_z"].shape


def test_an_axis_of_one_voxel_is_warned_of(volume, correct):
    _, metrics = correct(volume, shrink_factor=(2, 2, 20))
    assert any("one voxel along z" in warning for warning in metrics.warnings)


def test_the_share_that_is_clipped_is_that_of_the_fitted_voxels(write_image, biased, correct):
    source = write_image("v.ome.zarr", np.minimum(biased / 3, 255).astype(np.uint8))
    few = np.zeros(biased.shape, np.uint8)
    few[:, 17:20, 14:30] = 1
    _, metrics = correct(source, mask=str(write_image("m.ome.zarr", few)), shrink_factor=1)
    (said,) = (warning for warning in metrics.warnings if "clipped" in warning)
    share = re.match(rf"([0-9.]+) % of the fitted voxels of {source} exceed the largest", said)
    assert share is not None
    assert 0 < float(share[1]) <= 100


@pytest.mark.parametrize(("offset", "warned"), [(0, False), (-200, True)])
def test_intensities_in_decibels_are_warned_of(write_image, biased, correct, offset, warned):
    _, metrics = correct(write_image("v.ome.zarr", biased + np.float32(offset)))
    assert any("in decibels" in warning for warning in metrics.warnings) is warned


def test_a_volume_is_kept_in_memory_streamed_or_read_whole(volume, correct, write_file, biased):
    kept, first = correct(volume, "kept.ome.zarr", mask="tissue")
    least = first.figures["predicted_memory_bytes"]
    tight = ExecutionParameters(backend="cpu", workers=2, memory=f"{least - 1}B")
    streamed, second = correct(volume, "streamed.ome.zarr", mask="tissue", execution=tight)
    _, third = correct(write_file("a.nii", biased), "b.nii", mask="tissue")
    assert [m.figures["kept_in_memory"] for m in (first, second, third)] == [True, False, False]
    assert least - second.figures["predicted_memory_bytes"] == biased.nbytes
    assert first.bytes["read"] == second.bytes["read"] == biased.nbytes
    np.testing.assert_array_equal(read(streamed), read(kept))
    # The input and the output of the third, the input of the first.
    assert third.figures["predicted_memory_bytes"] - least == biased.nbytes


def test_a_dry_run_says_what_would_be_done_and_does_nothing(volume, command, tmp_path):
    done = command(
        *("n4", volume, tmp_path / "out.zarr", "--dry_run", "--metrics", tmp_path / "m.json"),
        *("--n4_mode", "two_pass", "--n4_section_starts", "0", "13", "--n4_shrink_factor", "auto"),
    )
    assert done.returncode == 0
    for words in (
        "26 x 37 x 44 voxels",
        "2 section(s) of 13 to 13 planes",
        "whole volume: 4 x 4 x 4 control points",
        "final knot distance",
        "kept in memory",
        "MB of memory",
    ):
        assert words in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["volume.ome.zarr"]


# Modes for serial sections


@pytest.fixture
def stepped(write_image, biased):
    """Sections of different brightness, recorded in the metadata."""
    voxels = biased.copy()
    for planes, factor in zip(SECTIONS, (1.0, 1.7, 0.6), strict=True):
        voxels[planes] *= factor
    return write_image("stepped.ome.zarr", voxels, attributes=noted(STARTS)), voxels


def test_each_section_is_what_simpleitk_makes_of_it_alone(stepped, correct, tmp_path):
    source, voxels = stepped
    # The parameters are in ITK's order, x y z.
    given = {"mode": "per_section", "shrink_factor": (3, 2, 1), "control_points": (6, 5, 4)}
    path, metrics = correct(source, field=tmp_path / "field.ome.zarr", **given)
    result = read(path)
    for planes in SECTIONS:
        expected = by_simpleitk(voxels[planes], shrink=(1, 2, 3), control_points=(4, 5, 6))
        np.testing.assert_allclose(result[planes], expected, rtol=1e-3)
    assert metrics.figures["levels"] == []
    assert [s["planes"] for s in metrics.figures["sections"]] == [[0, 9], [9, 18], [18, 26]]
    np.testing.assert_allclose(read(tmp_path / "field.ome.zarr") * result, voxels, rtol=1e-5)


def test_two_passes_fit_the_whole_on_what_the_sections_leave(stepped, correct, tmp_path):
    source, _ = stepped
    given = {"shrink_factor": (2, 2, 1), "dtype": "float32"}
    first, _ = correct(source, "first.ome.zarr", mode="per_section", **given)
    second, _ = correct(first, "second.ome.zarr", mode="global", **given)
    both, metrics = correct(source, "both.ome.zarr", mode="two_pass", **given)
    np.testing.assert_allclose(read(both), read(second), rtol=1e-3)
    assert metrics.figures["levels"]
    assert len(metrics.figures["sections"]) == 3
    # The volume's own attributes are kept.
    assert open_image(tmp_path / "out/both.ome.zarr").attributes == {**noted(STARTS), "step": "n4"}


def test_matched_histograms_take_the_steps_between_sections_away(stepped, correct, true_tissue):
    source, _ = stepped
    given = {"mask": "tissue", "shrink_factor": (2, 2, 1), "iterations": (20,)}
    plain, unmapped = correct(source, "plain.ome.zarr", **given)
    matched, mapped = correct(source, "matched.ome.zarr", histogram_matching="section", **given)
    assert unmapped.figures["jumps"] is None
    # Factors of 1.7 and 0.35: the mean of their logarithms.
    assert mapped.figures["jumps"]["before"] == pytest.approx(1.19, abs=0.1)
    assert mapped.figures["jumps"]["after"] < 0.1

    def steps(path):
        ratio = (read(path) / true_tissue)[:, true_tissue[0] > 100].mean(axis=1)
        sections = [ratio[planes].mean() for planes in SECTIONS]
        return np.std(sections) / np.mean(sections)

    assert steps(plain) > 0.3
    assert steps(matched) < 0.08


def test_the_gain_along_z_takes_attenuation_away(write_image, correct, true_tissue, tmp_path):
    depth = np.exp(-0.05 * (np.arange(SHAPE[0]) % 13)).astype(np.float32)
    tissue = np.broadcast_to(true_tissue[13], SHAPE)
    voxels = tissue * depth[:, None, None]
    source = write_image("v.ome.zarr", voxels)
    given = {"section_starts": (0, 13), "mask": "tissue", "shrink_factor": (2, 2, 1)}
    path, metrics = correct(
        source, z_profile_gain=True, iterations=(0,), field=tmp_path / "field.ome.zarr", **given
    )
    assert any("iterations" in warning for warning in metrics.warnings)
    found = read(path)
    for planes in (slice(0, 13), slice(13, 26)):
        ratio = (found / tissue)[planes][tissue[planes] > 100]
        assert ratio.std() / ratio.mean() < 0.02  # 0.18 before
    np.testing.assert_allclose(read(tmp_path / "field.ome.zarr") * found, voxels, rtol=1e-5)
    assert metrics.figures["field_max"] / metrics.figures["field_min"] > 1.5


def test_gains_that_flatten_tissue_which_changes_along_z_make_sections_jump(
    write_image, correct, true_tissue
):
    # Twice as bright at the end as at the beginning, through both sections.
    rising = np.exp2(np.linspace(0, 1, SHAPE[0], dtype=np.float32))
    voxels = np.broadcast_to(true_tissue[13], SHAPE) * rising[:, None, None]
    source = write_image("v.ome.zarr", voxels)
    given = {"section_starts": (0, 13), "mask": "tissue", "shrink_factor": (2, 2, 1)}
    _, metrics = correct(source, z_profile_gain=True, iterations=(0,), **given)
    assert metrics.figures["jumps"]["before"] < 0.02
    assert metrics.figures["jumps"]["after"] > 0.3


@pytest.mark.parametrize("strength", [0, 0.5])
def test_the_strength_is_a_way_from_the_input_whatever_is_done(stepped, correct, strength):
    source, voxels = stepped
    given = {"histogram_matching": "plane", "z_profile_gain": True, "mask": "tissue"}
    full = read(correct(source, "full.ome.zarr", mode="two_pass", **given)[0])
    path, metrics = correct(source, mode="two_pass", strength=strength, **given)
    np.testing.assert_allclose(
        read(path), voxels + strength * (full - voxels), rtol=1e-5 * strength
    )
    before, after = (metrics.figures[name] for name in ("cv_before", "cv_after"))
    assert after == before if strength == 0 else after < before


def test_a_mask_may_be_a_file_of_another_format_and_type(volume, write_file, correct, true_tissue):
    mask = true_tissue > 100
    # As nibabel writes it: the file's x and y run against ITK's.
    placed = {"origin": (-0.005, -0.005, 0.005), "direction": (-1, 0, 0, 0, -1, 0, 0, 0, 1)}
    file = write_file("mask.nii", mask.astype(np.float32), (0.01,) * 3, **placed)
    _, metrics = correct(volume, mask=str(file))
    inside = mask[shrink_slices(SHAPE, (2, 2, 2))]
    assert metrics.figures["mask_fraction"] == pytest.approx(inside.mean())


FLIP = (1, 0, 0, 0, -1, 0, 0, 0, 1)
FAR = {"origin": (81.2345696,) * 3}


@pytest.mark.parametrize("role", ["mask", "weights"])
@pytest.mark.parametrize(
    ("volume", "other", "words"),
    [
        (("v.ome.zarr", {}), ("m.ome.zarr", {"spacing": (20,) * 3}), "um from 10, 10, 10 and"),
        (("v.ome.zarr", {}), ("m.ome.zarr", {"edge": (0, 10, 0)}), "from 5, 15, 5 and .* 5, 5, 5"),
        (("v.ome.zarr", {}), ("m.nii", {}), "40 x 30 x 25 um from 2000.* 10 x 10 x 10 um"),
        (
            ("v.nii", {}),
            ("m.nii", {"direction": FLIP}),
            "x right to left and z posterior to anterior",
        ),
        (("v.nii.gz", {}), ("m.mha", {"origin": (1.5, -2.0, 7.27)}), "from .* -7270 and .* -7250"),
        (("v.ome.zarr", {}), ("m.tif", {"z": 11}), "of 11 x 10 x 10 um"),
        (("v.tif", {}), ("m.ome.zarr", {"spacing": (10, 10, 11)}), "of 10 x 10 x 11 um"),
        (("v.nii", {}), ("m.mha", {}), ""),
        (("v.ome.zarr", {}), ("m.tif", {}), ""),
        (("v.tif", {}), ("m.tif", {"z": None}), ""),
        (("v.tif", {}), ("m.nii", {"spacing": (0.01,) * 3}), ""),
        (("v.mha", FAR), ("m.nii", FAR), ""),
    ],
)
def test_what_lies_on_another_grid_is_refused(
    request, biased, tmp_path, reading, execution, role, volume, other, words
):
    def write(name, voxels, options):
        writer = {".zarr": "write_image", ".tif": "write_tiff"}.get(Path(name).suffix, "write_file")
        return request.getfixturevalue(writer)(name, voxels, **options)

    source = write(volume[0], biased, volume[1])
    beside = write(other[0], np.ones(SHAPE, np.uint8), other[1])
    asked = N4Parameters.model_validate({role: str(beside)})
    # Before any voxel is read, so that a dry run reports it.
    given = (source, tmp_path / "o.ome.zarr", asked, reading, execution)
    if not words:
        assert prepare(*given).companions[role].grid.shape == SHAPE
        return
    with pytest.raises(OctaneError, match=words) as caught:
        prepare(*given)
    assert f"{beside} is on a different grid than {source}: " in str(caught.value)
    assert "SimpleITK.Resample" in str(caught.value)


@pytest.mark.parametrize("mode", ["global", "per_section", "two_pass"])
def test_voxels_of_weight_0_are_left_out(volume, write_image, correct, true_tissue, mode):
    some = str(write_image("some.ome.zarr", (true_tissue > 100).astype(np.float32)))
    given = {"mode": mode, "section_starts": STARTS, "shrink_factor": (2, 2, 1)}
    masked, _ = correct(volume, "mask_n4.ome.zarr", mask=some, **given)
    left_out, _ = correct(volume, "zero_n4.ome.zarr", weights=some, **given)
    np.testing.assert_allclose(read(left_out), read(masked), rtol=1e-5)


def test_a_section_with_nothing_to_fit_is_named(write_image, biased, correct):
    voxels = biased.copy()
    voxels[9:18] = 3
    source = write_image("v.ome.zarr", voxels)
    given = {"mode": "per_section", "section_starts": STARTS, "shrink_factor": (2, 2, 1)}
    path, metrics = correct(source, **given)
    assert metrics.figures["sections_skipped"] == ["section 2"]
    assert "section 2" in metrics.warnings[0]
    np.testing.assert_array_equal(read(path)[9:18], 3)


def test_blank_slabs_of_missing_sections_are_left_out(write_image, biased, correct):
    voxels = biased.copy()
    voxels[18:] = 0
    source = write_image("v.ome.zarr", voxels, attributes=noted((0, 9, 18), blank=(3,)))
    figures = correct(source, mode="per_section", shrink_factor=(2, 2, 1))[1].figures
    assert [s["name"] for s in figures["sections"]] == ["s1", "s2"]
    assert figures["sections_skipped"] == []


def test_results_are_on_the_disk_at_the_end(volume, correct, tmp_path, monkeypatch):
    brought = []
    monkeypatch.setattr(
        "octane.processes.n4.step.bring_to_disk", lambda *paths: brought.extend(paths)
    )
    path, _ = correct(volume, field=(field := tmp_path / "field.ome.zarr"))
    assert brought == [path, field]


# The device


def lines_on_auto(caplog):
    return [text for text in caplog.messages if text.startswith("backend auto")]


@pytest.mark.parametrize("backend", ["auto", "gpu", "cpu"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_an_open_backend_is_chosen_by_the_sizes(
    volume, correct, monkeypatch, caplog, backend, on_gpu
):
    asked = []

    def on_device(work, device_bytes, *, batch, backend, **_):
        asked.append(backend)
        return work(Share(np, batch))

    monkeypatch.setattr(step_n4, "on_device", on_device)
    if on_gpu:
        monkeypatch.setattr(step_n4, "GPU_WORK", 0)
    caplog.set_level("INFO")
    correct(volume, execution=ExecutionParameters(backend=backend, workers=2))
    small = backend == "auto" and not on_gpu
    assert asked == ["cpu" if small else backend]
    lines = lines_on_auto(caplog)
    assert len(lines) == small
    assert all("CPU, because" in line for line in lines)


def test_without_a_gpu_the_log_says_once_why_the_cpu_is_used(volume, correct, monkeypatch, caplog):
    monkeypatch.setattr(step_n4, "GPU_WORK", 0)
    monkeypatch.setattr(CupyDevice, "missing", staticmethod(lambda: "CuPy is missing"))
    caplog.set_level("INFO")
    _, metrics = correct(volume, execution=ExecutionParameters(backend="auto", workers=2))
    assert lines_on_auto(caplog) == ["backend auto: CPU, because CuPy is missing"]
    assert metrics.figures["gpu"]["backend"] == "cpu"


def test_the_record_has_the_device_that_was_chosen(volume, correct):
    _, metrics = correct(volume, execution=ExecutionParameters(backend="auto", workers=2))
    found = metrics.figures["gpu"]
    assert found["backend"] == "cpu"
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["done"]


# Voxels that are not fitted

SPOILT = (slice(9, 13, 2), slice(15, 19, 2), slice(20, 24, 2))
"""8 voxels that remain on the grid that is shrunk by 2."""


@pytest.mark.parametrize("mode", ["global", "per_section", "two_pass"])
@pytest.mark.parametrize("given", ["none", "tissue", "file", "weights", "matched"])
def test_values_that_spoil_the_fit_are_left_out_and_counted(
    write_image, biased, correct, true_tissue, mode, given
):
    """Whatever the mask is and whatever is done before, as if a mask had left them out."""
    inside = np.full(SHAPE, 1, np.uint8) if given in ("none", "weights") else true_tissue > 100
    some = str(write_image("some.ome.zarr", inside.astype(np.uint8)))
    settings = {
        "none": {},
        "tissue": {"mask": "tissue"},
        "file": {"mask": some},
        "weights": {"weights": some},
        "matched": {"mask": some, "histogram_matching": "section", "z_profile_gain": True},
    }[given] | {"mode": mode, "section_starts": STARTS, "shrink_factor": (2, 2, 1)}
    spoilt = biased.copy()
    spoilt[SPOILT] = -300
    spoilt[SPOILT][0] = 1e-20
    keep = shrink_slices(SHAPE, (1, 2, 2))
    places = spoilt[keep] != biased[keep]
    source = write_image("v.ome.zarr", spoilt)
    path, metrics = correct(source, "spoilt.ome.zarr", dtype="float32", **settings)
    figures = metrics.figures
    assert figures["left_out"] == {
        "nonfinite": 0, "nonpositive": places.sum() // 2, "outliers": places.sum() // 2,
    }  # fmt: skip
    assert figures["unchanged"] == []
    assert 0 < figures["cv_after"] < figures["cv_before"] < 1.2
    assert figures["mask_fraction"] == pytest.approx(inside[keep].mean(), rel=0.12)
    if given == "tissue":
        return  # Its mask differs by the spoilt voxels.
    masked = inside.astype(bool)
    masked[SPOILT] = False
    without = str(write_image("without.ome.zarr", masked.astype(np.uint8)))
    name = "weights" if given == "weights" else "mask"
    clean, _ = correct(
        write_image("clean.ome.zarr", biased), "clean.ome.zarr", dtype="float32",
        **settings | {name: without},
    )  # fmt: skip
    differ = np.ones(SHAPE, bool)
    differ[SPOILT] = False
    np.testing.assert_allclose(read(path)[differ], read(clean)[differ], rtol=1e-4)


@pytest.mark.parametrize(
    ("value", "warned"), [(0, False), (-300, False), (1e-20, True), (1e12, True)]
)
def test_outliers_are_warned_of_and_values_of_0_are_logged(
    write_image, biased, correct, caplog, value, warned
):
    caplog.set_level("INFO")
    voxels = biased.copy()
    voxels[SPOILT] = value
    source = write_image("v.ome.zarr", voxels)
    _, metrics = correct(source, shrink_factor=1)
    assert "Excluded from the fit: 8 voxels" in caplog.text
    assert any("Excluded" in warning for warning in metrics.warnings) is warned


def test_itk_s_way_is_a_flag_and_what_it_does_to_the_field_is_recorded(
    write_image, biased, correct, tmp_path
):
    voxels = biased.copy()
    voxels[SPOILT] = -300
    source, given = write_image("v.ome.zarr", voxels), {"shrink_factor": 1}
    path, metrics = correct(source, use_all_voxels=True, **given)
    np.testing.assert_allclose(read(path), by_simpleitk(voxels, shrink=(1, 1, 1)), rtol=1e-3)
    assert metrics.figures["unchanged"] == [{"name": "the volume", "cause": "all voxels"}]
    assert metrics.figures["left_out"]["nonpositive"] == 0
    _, metrics = correct(source, "default.ome.zarr", **given)
    assert metrics.figures["unchanged"] == []
    # Nothing was asked for.
    for n, none in enumerate(({"strength": 0}, {"iterations": (0,)})):
        _, metrics = correct(source, f"none{n}.ome.zarr", **given | none)
        assert metrics.figures["unchanged"] is None


def test_levels_are_as_given_or_judged(write_image, biased, correct):
    source, given = write_image("v.ome.zarr", biased), {"shrink_factor": 1}
    counted, metrics = correct(source, "counted.ome.zarr", levels=2, iterations=(8,), **given)
    assert metrics.figures["relative_entropy"] == []
    listed, _ = correct(source, "listed.ome.zarr", iterations=(8, 8), **given)
    np.testing.assert_array_equal(read(counted), read(listed))
    path, metrics = correct(source, "judged.ome.zarr", levels="auto", iterations=(50, 50), **given)
    kept = len(metrics.figures["levels"])
    assert kept > 0
    assert len(metrics.figures["relative_entropy"]) == 1 + 2
    same, _ = correct(source, "same.ome.zarr", iterations=(50,) * kept, **given)
    np.testing.assert_array_equal(read(path), read(same))


@pytest.mark.parametrize("mode", ["global", "per_section", "two_pass"])
def test_where_n4_does_not_help_the_volume_is_left_as_it_is(write_image, correct, rng, mode):
    voxels = rng.choice(np.array([400, 900], np.float32), SHAPE)
    source = write_image("v.ome.zarr", voxels)
    path, metrics = correct(
        source, shrink_factor=1, levels="auto", mode=mode, section_starts=STARTS
    )
    assert {own["cause"] for own in metrics.figures["unchanged"]} == {"levels"}
    np.testing.assert_array_equal(read(path), voxels)
    fields = metrics.figures["sections"] or [metrics.figures]
    assert all(own["levels"] == [] and own["relative_entropy"] for own in fields)


def test_even_tissue_is_said_to_be_left_as_it_is(write_image, correct, rng):
    voxels = rng.normal(600, 1, SHAPE).astype(np.float32)
    source = write_image("v.ome.zarr", voxels)
    for n, more in enumerate(({}, {"convergence_threshold": 0})):
        _, metrics = correct(source, f"n{n}.ome.zarr", shrink_factor=1, **more)
        assert metrics.figures["unchanged"] == [{"name": "the volume", "cause": "converged"}]
    few = {"convergence_threshold": 0, "iterations": (1,)}
    _, metrics = correct(source, "few.ome.zarr", shrink_factor=1, **few)
    assert metrics.figures["unchanged"] == [{"name": "the volume", "cause": "iterations"}]


@pytest.mark.parametrize("mask", ["none", "tissue"])
def test_a_volume_without_a_value_above_0_is_refused_by_name(
    write_image, biased, correct, tmp_path, mask
):
    source = write_image("v.ome.zarr", biased - 2000)
    words = refused(correct, source, "no voxel above 0", tmp_path, mask=mask)
    assert str(source) in words
