"""N4 end to end: equal to SimpleITK, the same bits however it is cut, and what is refused."""

import numpy as np
import pytest
import SimpleITK as sitk

from octane.config.params import ExecutionParameters, N4Parameters
from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.core.metrics import Metrics
from octane.n4 import inputs, plan
from octane.n4.fit import shrink_slices
from octane.steps.n4 import correct_bias, prepare
from octane.store import volumes
from octane.store import writer as store_writer
from octane.store.image import open_image
from octane.store.volumes import open_volume
from octane.store.writer import Level, create_image

SHAPE = (26, 37, 44)
QUICK = {"shrink_factor": 2, "iterations": (8, 8)}


@pytest.fixture(scope="module")
def true_field():
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
    return np.exp(0.4 * (0.7 * x - 0.5 * y + 0.4 * z * x)).astype(np.float32)


@pytest.fixture(scope="module")
def true_tissue():
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
    tissue = np.where((x / 0.8) ** 2 + (y / 0.8) ** 2 + (z / 1.4) ** 2 < 1, 500.0, 30.0)
    return np.where((x / 0.4) ** 2 + (y / 0.3) ** 2 < 1, 800.0, tissue).astype(np.float32)


@pytest.fixture(scope="module")
def biased(true_field, true_tissue):
    """Tissue, field and some noise."""
    noise = 1 + 0.03 * np.random.default_rng(5).standard_normal(SHAPE)
    return (true_field * true_tissue * noise).astype(np.float32)


@pytest.fixture
def volume(write_image, biased):
    return write_image("volume.ome.zarr", biased, attributes={"kind": "volume", "step": "stack"})


@pytest.fixture
def correct(tmp_path, reading, execution):
    """Correct into ``out/<name>``; gives the path and the metrics."""

    def run(source, name="n4.ome.zarr", *, execution=execution, field=None, truth=None, **settings):
        destination = tmp_path / "out" / name
        metrics = correct_bias(
            source,
            destination,
            N4Parameters.model_validate({**QUICK, **settings}),
            reading,
            execution,
            save_bias_field=field,
            truth=truth,
        )
        return destination, metrics

    return run


@pytest.fixture
def write_file(tmp_path):
    """Write a volume file with a geometry of its own."""

    def write(name, voxels):
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing((0.025, 0.03, 0.04))
        image.SetOrigin((1.5, -2.0, 7.25))
        image.SetDirection((0, -1, 0, 1, 0, 0, 0, 0, 1))
        sitk.WriteImage(image, tmp_path / name)
        return tmp_path / name

    return write


def read(path):
    volume = open_volume(path)
    return volume.read(tuple(slice(0, n) for n in volume.grid.shape))


def refused(correct, source, words, tmp_path, **settings):
    with pytest.raises(OctaneError, match=words) as caught:
        correct(source, **settings)
    assert not list(tmp_path.glob("out/*"))
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int16", "float64"])
def test_strength_0_is_the_input_bit_for_bit(write_image, biased, correct, dtype):
    voxels = biased.astype(dtype)
    path, _ = correct(write_image("v.ome.zarr", voxels), strength=0)
    result = read(path)
    assert result.dtype == voxels.dtype
    assert result.tobytes() == voxels.tobytes()


def test_half_the_strength_is_halfway(volume, biased, correct):
    full = read(correct(volume, "full.ome.zarr")[0])
    half = read(correct(volume, "half.ome.zarr", strength=0.5)[0])
    np.testing.assert_allclose(half, (biased + full) / 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint8"])
def test_integers_stay_integers_and_are_rounded(write_image, biased, correct, tmp_path, dtype):
    voxels = np.minimum(biased, 250).astype(dtype)
    path, _ = correct(write_image("v.ome.zarr", voxels), field=tmp_path / "field.ome.zarr")
    result = read(path)
    assert result.dtype == dtype
    exact = voxels / read(tmp_path / "field.ome.zarr").astype(np.float64)
    limit = np.iinfo(dtype).max
    assert np.abs(result - np.clip(exact, 0, limit)).max() <= 0.5 + 1e-4


def test_another_type_keeps_what_rounding_would_lose(write_image, biased, correct, tmp_path):
    voxels = biased.astype(np.uint16)
    path, _ = correct(
        write_image("v.ome.zarr", voxels), field=tmp_path / "field.ome.zarr", dtype="float32"
    )
    result = read(path)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result * read(tmp_path / "field.ome.zarr"), voxels, rtol=1e-6)


def test_the_field_times_the_corrected_volume_is_the_input(volume, biased, correct, tmp_path):
    field = tmp_path / "field.ome.zarr"
    path, _ = correct(volume, field=field)
    assert read(field).dtype == np.float32
    assert open_image(field).grid == open_image(volume).grid
    np.testing.assert_allclose(read(field) * read(path), biased, rtol=1e-6)


def test_the_field_is_found(volume, true_field, correct, tmp_path):
    field = tmp_path / "field.ome.zarr"
    _, metrics = correct(volume, field=field, mask="tissue", iterations=(50, 50, 50, 50))
    found = np.log(read(field))[13, 10:27, 12:32]
    expected = np.log(true_field)[13, 10:27, 12:32]
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.97
    assert metrics.figures["cv_after"] < metrics.figures["cv_before"]


class FromSimpleITK:
    """SimpleITK's own N4, shrunk and applied as its documentation says, on 1 and on 3 threads."""

    def __init__(self, voxels, mask, shrink, iterations):
        image = sitk.GetImageFromArray(voxels)
        inputs = [sitk.Shrink(image, [shrink] * 3)]
        if mask is not None:
            inputs.append(sitk.Shrink(sitk.GetImageFromArray(mask), [shrink] * 3))
        self.corrected = []
        before = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
        for threads in (1, 3):
            sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
            try:
                n4 = sitk.N4BiasFieldCorrectionImageFilter()
                n4.SetMaximumNumberOfIterations(iterations)
                n4.Execute(*inputs)
                log_field = sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image))
            finally:
                sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(before)
            self.corrected.append(voxels / np.exp(log_field.astype(np.float64)))

    def assert_equal(self, result):
        errors = [np.abs(result / c - 1) for c in self.corrected]
        nearest = min(errors, key=np.median)
        # What ITK keeps from itself with another number of threads; see test_n4_simpleitk.
        assert np.median(nearest) <= 1e-4
        assert nearest.max() <= 4e-4


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("suffix", [".ome.zarr", ".nii.gz", ".mha"])
def test_it_equals_simpleitk(write_image, write_file, correct, biased, true_tissue, suffix, masked):
    write = write_image if suffix == ".ome.zarr" else write_file
    mask = (true_tissue > 100).astype(np.uint8) if masked else None
    given = str(write(f"mask{suffix}", mask)) if masked else None
    path, _ = correct(
        write(f"volume{suffix}", biased),
        f"n4{suffix}",
        mask=given,
        shrink_factor=2,
        iterations=(20, 20, 20),
    )
    FromSimpleITK(biased, mask, 2, (20, 20, 20)).assert_equal(read(path))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_a_file_keeps_its_geometry(write_file, correct, biased, suffix):
    source = write_file(f"v{suffix}", biased)
    path, metrics = correct(source, f"n4{suffix}")
    before, after = sitk.ReadImage(source), sitk.ReadImage(path)
    assert after.GetSpacing() == before.GetSpacing()
    assert after.GetOrigin() == before.GetOrigin()
    assert after.GetDirection() == before.GetDirection()
    assert after.GetPixelID() == before.GetPixelID()
    assert metrics.figures["voxel_size"] == pytest.approx([40.0, 30.0, 25.0], rel=1e-6)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha"])
def test_files_are_read_once_each(
    write_file, correct, biased, true_tissue, suffix, files_read_once
):
    source = write_file(f"v{suffix}", biased)
    mask = write_file(f"mask{suffix}", (true_tissue > 100).astype(np.uint8))
    _, metrics = correct(source, mask=str(mask))
    assert files_read_once == [f"v{suffix}", f"mask{suffix}"]
    assert metrics.seconds["read"] > 0


def test_no_voxel_is_read_for_a_plan(
    write_file, biased, reading, execution, tmp_path, files_read_once
):
    source, out = write_file("v.nii.gz", biased), tmp_path / "o.ome.zarr"
    prepare(source, out, N4Parameters(), reading, execution)
    assert files_read_once == []


def test_from_a_file_to_ome_zarr_and_back(write_file, correct, biased):
    source = write_file("v.nii.gz", biased)
    zarr_path, _ = correct(source)
    grid = open_image(zarr_path).grid
    assert grid.spacing == pytest.approx((40.0, 30.0, 25.0), rel=1e-6)
    assert grid.origin == pytest.approx((7250.0, -2000.0, 1500.0), rel=1e-6)
    file_path, _ = correct(zarr_path, "again.mha", strength=0)
    again = sitk.ReadImage(file_path)
    assert again.GetSpacing() == pytest.approx((0.025, 0.03, 0.04))
    assert again.GetOrigin() == pytest.approx((1.5, -2.0, 7.25))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(again), read(zarr_path))


def test_the_volumes_own_notes_are_kept(write_image, biased, correct):
    sections = [{"name": "a", "number": 1, "start": 0, "stop": 26, "missing": False}]
    source = write_image(
        "v.ome.zarr", biased, attributes={"step": "stack", "kind": "volume", "sections": sections}
    )
    attributes = open_image(correct(source)[0]).attributes
    assert attributes == {"step": "n4", "kind": "volume", "sections": sections}


def cut_small(monkeypatch):
    """Blocks of 16 and shards of 16, where the volume is one of each."""
    for module in (inputs, plan):
        monkeypatch.setattr(module, "READ_BLOCK", 16)
    for module in (store_writer, volumes):
        monkeypatch.setattr(module, "CHUNK", 8)
        monkeypatch.setattr(module, "SHARD", 16)


@pytest.mark.parametrize("shrink", [1, 2, 3, (5, 2, 7), 40])
def test_blocks_give_the_voxels_that_shrinking_keeps(volume, biased, monkeypatch, shrink):
    cut_small(monkeypatch)
    factors = (shrink,) * 3 if isinstance(shrink, int) else shrink
    keep = shrink_slices(SHAPE, factors)
    found = inputs.read_strided(
        open_volume(volume), keep, np.float32, workers=2, metrics=Metrics("n4"), finite=True
    )
    np.testing.assert_array_equal(found, biased[keep])


@pytest.mark.parametrize("suffix", [".ome.zarr", ".mha"])
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_many_blocks_give_the_bits_of_one(
    write_image, write_file, correct, biased, tmp_path, monkeypatch, suffix, dtype
):
    write = write_image if suffix == ".ome.zarr" else write_file
    source = write(f"v{suffix}", biased.astype(dtype))
    fields = [tmp_path / f"field_{n}.ome.zarr" for n in ("one", "many")]
    one, _ = correct(source, f"one{suffix}", field=fields[0], mask="tissue")
    cut_small(monkeypatch)
    more = ExecutionParameters(backend="cpu", workers=4)
    many, metrics = correct(source, f"many{suffix}", field=fields[1], mask="tissue", execution=more)
    np.testing.assert_array_equal(read(many), read(one))
    np.testing.assert_array_equal(*map(read, fields))
    assert metrics.bytes["read"] == biased.astype(dtype).nbytes
    assert metrics.bytes["written"] == biased.astype(dtype).nbytes + biased.size * 4


def test_a_repeat_gives_the_same_bits(volume, correct):
    first, second = (read(correct(volume, f"{n}.ome.zarr")[0]) for n in "ab")
    np.testing.assert_array_equal(first, second)


def test_a_mask_of_255_is_refused(volume, write_image, correct, tmp_path):
    mask = write_image("mask.ome.zarr", np.full(SHAPE, 255, np.uint8))
    words = refused(correct, volume, "255", tmp_path, mask=str(mask))
    assert str(mask) in words


def test_a_mask_of_another_shape_is_refused(volume, write_image, correct, tmp_path):
    mask = write_image("mask.ome.zarr", np.ones((26, 37, 43), np.uint8))
    words = refused(correct, volume, "shape", tmp_path, mask=str(mask))
    assert str(mask) in words
    assert str(volume) in words


def test_an_empty_mask_is_refused(volume, write_image, correct, tmp_path):
    mask = write_image("mask.ome.zarr", np.zeros(SHAPE, np.uint8))
    assert str(mask) in refused(correct, volume, "no voxel", tmp_path, mask=str(mask))


def test_a_mask_that_is_not_there_is_refused(volume, correct, tmp_path):
    refused(correct, volume, "does not exist", tmp_path, mask=str(tmp_path / "none.nii"))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_mask_may_be_a_file_of_another_format(volume, write_file, correct, true_tissue, dtype):
    mask = write_file("mask.nii.gz", (true_tissue > 100).astype(dtype))
    _, metrics = correct(volume, mask=str(mask))
    inside = (true_tissue > 100)[shrink_slices(SHAPE, (2, 2, 2))]
    assert metrics.figures["mask_fraction"] == pytest.approx(inside.mean())


@pytest.mark.parametrize("mask", ["none", None, ""])
def test_no_mask_fits_every_voxel(volume, correct, mask):
    assert correct(volume, mask=mask)[1].figures["mask_fraction"] == 1


def test_the_tissue_is_found_section_by_section(write_image, correct, true_tissue):
    # The second section is dimmer than the first one's background; the third is a blank slab.
    voxels = true_tissue.copy()
    voxels[10:18] /= 50
    voxels[18:] = 0
    spans = [(0, 10, False), (10, 18, False), (18, 26, True)]
    sections = [
        {"name": str(n), "number": n, "start": a, "stop": b, "missing": blank}
        for n, (a, b, blank) in enumerate(spans, start=1)
    ]
    source = write_image("v.ome.zarr", voxels, attributes={"sections": sections})
    _, metrics = correct(source, mask="tissue")
    expected = true_tissue > 100
    expected[18:] = False
    expected = expected[shrink_slices(SHAPE, (2, 2, 2))]
    assert metrics.figures["mask_fraction"] == pytest.approx(expected.mean(), rel=0.15)


def test_a_constant_volume_is_refused(write_image, correct, tmp_path):
    source = write_image("v.ome.zarr", np.full(SHAPE, 7, np.float32))
    words = refused(correct, source, "one value 7", tmp_path)
    assert str(source) in words


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(3, 20, 41), (25, 36, 43)])
def test_a_value_that_is_not_finite_is_an_error_that_names_it(
    write_image, biased, correct, tmp_path, monkeypatch, value, at
):
    cut_small(monkeypatch)
    voxels = biased.copy()
    voxels[at] = value
    source = write_image("v.ome.zarr", voxels)
    words = refused(correct, source, "NaN or Inf", tmp_path, shrink_factor=4)
    assert f"first at z y x {' '.join(map(str, at))}" in words
    assert str(source) in words
    assert "--nonfinite mask" in words


def test_values_that_are_not_finite_are_left_out_where_that_is_wanted(
    write_image, biased, correct, tmp_path
):
    voxels = biased.copy()
    voxels[5:9, 10:20, 10:20] = np.nan
    voxels[20, 20, 20] = np.inf
    source = write_image("v.ome.zarr", voxels)
    path, metrics = correct(source, nonfinite="mask", field=tmp_path / "field.ome.zarr")
    result, field = read(path), read(tmp_path / "field.ome.zarr")
    assert "NaN or Inf" in metrics.warnings[0]
    assert np.isfinite(field).all()
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(voxels))
    finite = np.isfinite(voxels)
    np.testing.assert_allclose((field * result)[finite], voxels[finite], rtol=1e-6)
    assert np.isfinite(metrics.figures["cv_before"])
    assert np.isfinite(metrics.figures["cv_after"])


def test_complex_voxels_are_refused(write_image, correct, tmp_path):
    source = write_image("v.ome.zarr", np.ones(SHAPE, np.complex64))
    assert str(source) in refused(correct, source, "real intensities", tmp_path)


def test_an_unknown_format_is_refused(volume, correct, tmp_path):
    with pytest.raises(OctaneError, match="no format"):
        correct(volume, "n4.png")


def test_existing_output_is_kept_unless_overwritten(volume, correct):
    correct(volume)
    with pytest.raises(OctaneError, match="--overwrite"):
        correct(volume)


def test_existing_field_output_leaves_no_corrected_volume(volume, correct, tmp_path):
    (tmp_path / "field.ome.zarr").mkdir()
    refused(correct, volume, "--overwrite", tmp_path, field=tmp_path / "field.ome.zarr")


def test_too_little_memory_for_the_fit_is_said_before_it(volume, correct, tmp_path):
    little = ExecutionParameters(backend="cpu", memory="100kB")
    refused(correct, volume, "--shrink-factor", tmp_path, execution=little, shrink_factor=1)


def test_a_lost_chunk_leaves_nothing(volume, correct, tmp_path):
    (volume / "0/c/0/0/0").unlink()
    refused(correct, volume, "0/c/0/0/0", tmp_path)


@pytest.fixture
def truth(tmp_path, true_tissue, true_field):
    grid = Grid(SHAPE, (10.0, 10.0, 10.0), (5.0, 5.0, 5.0))
    for name, values in (("tissue", true_tissue), ("bias", true_field)):
        with create_image(
            tmp_path / "truth" / f"{name}.ome.zarr", [Level.volume(grid)], "float32"
        ) as (writer,):
            writer[tuple(slice(n) for n in SHAPE)] = values
    return tmp_path / "truth"


def test_figures_against_the_truth(volume, correct, truth):
    _, metrics = correct(volume, mask="tissue", truth=truth, iterations=(50, 50, 50))
    figures = metrics.figures["truth"]
    assert figures["field_correlation"] > 0.95
    # The noise alone has 0.03.
    assert figures["cv_against_truth_before"] > 0.12
    assert 0.025 < figures["cv_against_truth_after"] < 0.08
    assert metrics.previews["true_field_z"].shape == metrics.previews["field_z"].shape


def test_a_truth_of_another_shape_is_refused(write_image, correct, truth, tmp_path):
    source = write_image("v.ome.zarr", np.random.default_rng(1).random((20, 20, 20), np.float32))
    refused(correct, source, "--truth-resolution", tmp_path, truth=truth)


def test_the_metrics_say_what_was_done(volume, correct):
    _, metrics = correct(volume, iterations=(3, 4))
    figures, record = metrics.figures, metrics.record()
    assert [level["iterations"] for level in figures["levels"]] == [3, 4]
    assert [len(level["convergence"]) for level in figures["levels"]] == [3, 4]
    assert figures["field_min"] < 1 < figures["field_max"]
    assert figures["shrunk_shape"] == [13, 18, 22]
    assert figures["shrunk_spacing"] == [20.0, 20.0, 20.0]
    assert set(record["seconds"]) >= {"total", "shrink", "fit", "read", "compute", "write"}
    assert metrics.previews["before_z"].shape == (18, 22)
    assert metrics.previews["profile_before"].shape == (13,)
    assert metrics.previews["histogram_before"].sum() > 0


def test_shrink_factors_and_control_points_are_in_itks_order(write_image, correct, tmp_path):
    voxels = np.random.default_rng(2).gamma(5.0, 20.0, (12, 30, 42)).astype(np.float32)
    path, metrics = correct(
        write_image("v.ome.zarr", voxels), shrink_factor=(3, 2, 1), control_points=(6, 5, 4)
    )
    assert metrics.figures["shrunk_shape"] == [12, 15, 14]
    image = sitk.GetImageFromArray(voxels)
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations((8, 8))
    n4.SetNumberOfControlPoints((6, 5, 4))
    n4.Execute(sitk.Shrink(image, (3, 2, 1)))
    field = np.exp(sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image)))
    np.testing.assert_allclose(read(path), voxels / field, rtol=1e-3)


def test_two_outputs_of_one_name_are_refused(correct, volume, tmp_path):
    with pytest.raises(OctaneError, match="another name"):
        correct(volume, "n4.ome.zarr", field=tmp_path / "out" / "n4.ome.zarr")
    assert not (tmp_path / "out").exists()


def test_a_shrink_factor_that_leaves_one_plane_gives_a_field_that_is_constant_across(
    volume, correct, tmp_path, caplog
):
    field = tmp_path / "field.ome.zarr"
    correct(volume, shrink_factor=(2, 2, 20), field=field)
    assert "one voxel along z" in caplog.text
    assert np.ptp(read(field), axis=0).max() < 1e-5
    assert read(field).std() > 0.01


def test_no_iterations_leave_the_volume_and_say_so(correct, volume, biased):
    path, metrics = correct(volume, iterations=(0,))
    np.testing.assert_array_equal(read(path), biased)
    assert any("iterations" in warning for warning in metrics.warnings)


def test_the_plan_counts_files_that_are_read_whole(correct, volume, write_file, biased):
    _, streamed = correct(volume)
    _, whole = correct(write_file("a.nii", biased), "b.nii")
    assert streamed.figures["kept_in_memory"]
    assert not whole.figures["kept_in_memory"]
    # The input and the output of the one, the input of the other.
    more = whole.figures["predicted_memory_bytes"] - streamed.figures["predicted_memory_bytes"]
    assert more == biased.nbytes


# Kept in memory or streamed


def test_a_volume_that_does_not_fit_is_streamed_to_the_same_bits(volume, correct, biased):
    kept, first = correct(volume, "kept.ome.zarr", mask="tissue")
    least = first.figures["predicted_memory_bytes"]
    tight = ExecutionParameters(backend="cpu", workers=2, memory=f"{least - 1}B")
    streamed, second = correct(volume, "streamed.ome.zarr", mask="tissue", execution=tight)
    assert first.figures["kept_in_memory"]
    assert not second.figures["kept_in_memory"]
    assert first.bytes["read"] == second.bytes["read"] == biased.nbytes
    np.testing.assert_array_equal(read(streamed), read(kept))


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "streamed"])
def test_the_log_tells_how_far_reading_and_the_fit_have_come(volume, correct, caplog, kept):
    caplog.set_level("INFO", logger="octane")
    _, metrics = correct(volume, execution=ExecutionParameters(backend="cpu", workers=2))
    if not kept:
        memory = f"{metrics.figures['predicted_memory_bytes'] - 1}B"
        caplog.clear()
        tight = ExecutionParameters(backend="cpu", workers=2, memory=memory)
        _, metrics = correct(volume, "again.ome.zarr", execution=tight)
    assert metrics.figures["kept_in_memory"] == kept
    lines = [m.split(",")[0] for m in caplog.messages if " of 1, " in m]
    assert lines == ["N4: reading: 1 of 1", *["N4: shrinking: 1 of 1"] * kept, "N4: 1 of 1"]
    levels = metrics.figures["levels"]
    assert (
        f"N4: the volume fitted in {' + '.join(str(one['iterations']) for one in levels)} "
        f"iterations, convergence {', '.join(format(c['convergence'][-1], '.3g') for c in levels)}"
    ) in caplog.messages


def test_a_dry_run_says_what_would_be_done_and_does_nothing(volume, run_command, tmp_path):
    done = run_command(
        *("n4", volume, tmp_path / "out.zarr", "--dry-run", "--metrics", tmp_path / "m.json"),
        *("--mode", "two_pass", "--section-starts", "0", "13", "--shrink-factor", "auto"),
    )
    assert done.returncode == 0
    assert "2 section(s) of 13 to 13 planes" in done.stdout
    assert "MB of memory" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["volume.ome.zarr"]


# Modes for serial sections

STARTS = (0, 9, 18)
STEPS = (1.0, 1.7, 0.6)


@pytest.fixture
def stepped(write_image, biased):
    """Sections that differ in brightness, noted in the metadata."""
    voxels = biased.copy()
    stops = (*STARTS[1:], SHAPE[0])
    for start, stop, factor in zip(STARTS, stops, STEPS, strict=True):
        voxels[start:stop] *= factor
    sections = [
        {"name": f"s{k}", "number": k, "start": a, "stop": b, "missing": False}
        for k, (a, b) in enumerate(zip(STARTS, stops, strict=True), start=1)
    ]
    return write_image("stepped.ome.zarr", voxels, attributes={"sections": sections}), voxels


def simpleitk(voxels, iterations):
    image = sitk.GetImageFromArray(np.ascontiguousarray(voxels))
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations(iterations)
    n4.Execute(sitk.Shrink(image, (2, 2, 1)))
    return np.exp(sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image)))


def test_each_section_is_what_simpleitk_makes_of_it_alone(stepped, correct, tmp_path):
    source, voxels = stepped
    given = {"mode": "per_section", "shrink_factor": (2, 2, 1)}
    path, metrics = correct(source, field=tmp_path / "field.ome.zarr", **given)
    result = read(path)
    for start, stop in zip(STARTS, (*STARTS[1:], SHAPE[0]), strict=True):
        expected = voxels[start:stop] / simpleitk(voxels[start:stop], (8, 8))
        np.testing.assert_allclose(result[start:stop], expected, rtol=1e-3)
    assert metrics.figures["levels"] == []
    assert [s["planes"] for s in metrics.figures["sections"]] == [[0, 9], [9, 18], [18, 26]]
    np.testing.assert_allclose(read(tmp_path / "field.ome.zarr") * result, voxels, rtol=1e-5)


def test_one_section_by_itself_is_the_global_fit(volume, correct):
    whole, _ = correct(volume, "whole.ome.zarr")
    alone, _ = correct(volume, "alone.ome.zarr", mode="per_section", section_starts=(0,))
    np.testing.assert_array_equal(read(alone), read(whole))


def test_two_passes_fit_the_whole_on_what_the_sections_leave(stepped, correct, tmp_path):
    source, _ = stepped
    given = {"shrink_factor": (2, 2, 1), "dtype": "float32"}
    first, _ = correct(source, "first.ome.zarr", mode="per_section", **given)
    second, _ = correct(first, "second.ome.zarr", mode="global", **given)
    both, metrics = correct(source, "both.ome.zarr", mode="two_pass", **given)
    np.testing.assert_allclose(read(both), read(second), rtol=1e-3)
    assert metrics.figures["levels"]
    assert len(metrics.figures["sections"]) == 3


@pytest.mark.parametrize("mode", ["per_section", "two_pass"])
def test_the_modes_give_the_same_bits_however_they_are_cut(
    stepped, correct, monkeypatch, mode, tmp_path
):
    source, _ = stepped
    given = {"mode": mode, "mask": "tissue", "histogram_matching": "section", "outside": "zero"}
    one, _ = correct(source, "one.ome.zarr", **given)
    cut_small(monkeypatch)
    more = ExecutionParameters(backend="cpu", workers=4)
    many, _ = correct(source, "many.ome.zarr", execution=more, **given)
    np.testing.assert_array_equal(read(many), read(one))


def test_matched_histograms_take_the_steps_between_sections_away(stepped, correct, true_tissue):
    source, _ = stepped
    given = {"mask": "tissue", "shrink_factor": (2, 2, 1), "iterations": (20,)}
    plain, _ = correct(source, "plain.ome.zarr", **given)
    matched, _ = correct(source, "matched.ome.zarr", histogram_matching="section", **given)

    def steps(path):
        ratio = (read(path) / true_tissue)[:, true_tissue[0] > 100].mean(axis=1)
        sections = [ratio[a:b].mean() for a, b in zip(STARTS, (*STARTS[1:], 26), strict=True)]
        return np.std(sections) / np.mean(sections)

    assert steps(plain) > 0.3
    assert steps(matched) < 0.08


def test_the_gain_along_z_takes_attenuation_away(write_image, correct, true_tissue, tmp_path):
    depth = np.exp(-0.05 * (np.arange(SHAPE[0]) % 13)).astype(np.float32)
    tissue = np.broadcast_to(true_tissue[13], SHAPE)
    voxels = tissue * depth[:, None, None]
    source = write_image("v.ome.zarr", voxels)
    path, _ = correct(
        source,
        z_profile_gain=True,
        section_starts=(0, 13),
        mask="tissue",
        shrink_factor=(2, 2, 1),
        iterations=(0,),
        field=tmp_path / "field.ome.zarr",
    )
    found = read(path)
    for planes in (slice(0, 13), slice(13, 26)):
        ratio = (found / tissue)[planes][tissue[planes] > 100]
        assert ratio.std() / ratio.mean() < 0.02  # 0.18 before
    np.testing.assert_allclose(read(tmp_path / "field.ome.zarr") * found, voxels, rtol=1e-5)


def test_strength_0_is_the_input_whatever_is_done(stepped, correct):
    source, voxels = stepped
    given = {"mode": "two_pass", "histogram_matching": "plane", "z_profile_gain": True}
    path, _ = correct(source, strength=0, mask="tissue", **given)
    np.testing.assert_array_equal(read(path), voxels)


def test_half_the_strength_is_halfway_from_the_input_to_the_matched(stepped, correct):
    source, voxels = stepped
    given = {"histogram_matching": "section", "mask": "tissue"}
    full = read(correct(source, "full.ome.zarr", **given)[0])
    half = read(correct(source, "half.ome.zarr", strength=0.5, **given)[0])
    np.testing.assert_allclose(half, (full + voxels) / 2, rtol=1e-5)


def test_the_outside_becomes_zero_where_that_is_wanted(volume, write_file, correct, true_tissue):
    mask = (true_tissue > 100).astype(np.uint8)
    file = write_file("mask.nii", mask)
    plain, _ = correct(volume, "plain.ome.zarr", mask=str(file))
    zeroed, _ = correct(volume, "zeroed.ome.zarr", mask=str(file), outside="zero")
    np.testing.assert_array_equal(read(zeroed), np.where(mask == 1, read(plain), 0))
    found = read(correct(volume, "tissue.ome.zarr", mask="tissue", outside="zero")[0]) > 0
    assert (found == mask).mean() > 0.95


def test_zero_outside_needs_a_mask(volume, correct, tmp_path):
    refused(correct, volume, "--mask tissue", tmp_path, outside="zero")


def test_weights_of_one_change_nothing_and_of_zero_leave_voxels_out(
    volume, write_image, correct, true_tissue, tmp_path
):
    ones = write_image("ones.ome.zarr", np.ones(SHAPE, np.float32))
    mask = (true_tissue > 100).astype(np.float32)
    some = write_image("some.ome.zarr", mask)
    plain, _ = correct(volume, "plain.ome.zarr")
    weighted, _ = correct(volume, "ones_n4.ome.zarr", weights=str(ones))
    np.testing.assert_allclose(read(weighted), read(plain), rtol=1e-5)
    masked, _ = correct(volume, "mask_n4.ome.zarr", mask=str(some))
    left_out, _ = correct(volume, "zero_n4.ome.zarr", weights=str(some))
    np.testing.assert_allclose(read(left_out), read(masked), rtol=1e-5)


@pytest.mark.parametrize(("value", "words"), [(-1, "below 0"), (np.nan, "below 0 or NaN")])
def test_weights_that_are_none_are_refused(volume, write_image, correct, tmp_path, value, words):
    weights = np.ones(SHAPE, np.float32)
    weights[0, 0, 0] = value
    path = write_image("weights.ome.zarr", weights)
    given = {"weights": str(path), "shrink_factor": 1}
    assert str(path) in refused(correct, volume, words, tmp_path, **given)


def test_weights_of_another_shape_are_refused(volume, write_image, correct, tmp_path):
    path = write_image("weights.ome.zarr", np.ones((4, 4, 4), np.float32))
    refused(correct, volume, "give a weight image", tmp_path, weights=str(path))


def test_a_volume_of_one_plane_is_corrected_across_it(write_image, biased, correct):
    source = write_image("v.ome.zarr", biased[:1])
    path, metrics = correct(source, shrink_factor=(2, 2, 1), mask="tissue")
    assert any("one voxel along z" in warning for warning in metrics.warnings)
    assert read(path).shape == (1, *SHAPE[1:])
    assert metrics.figures["cv_after"] < metrics.figures["cv_before"]


def test_a_section_with_nothing_to_fit_is_named(write_image, biased, correct, caplog):
    voxels = biased.copy()
    voxels[9:18] = 3
    source = write_image("v.ome.zarr", voxels)
    given = {"mode": "per_section", "section_starts": STARTS, "shrink_factor": (2, 2, 1)}
    path, metrics = correct(source, **given)
    assert metrics.figures["sections_skipped"] == ["section 2"]
    assert "section 2" in metrics.warnings[0]
    np.testing.assert_array_equal(read(path)[9:18], 3)


@pytest.mark.parametrize("starts", [(0, 9, 9), (0, 26), (5, 3), (-1,)])
def test_section_starts_that_are_none_are_refused(volume, correct, tmp_path, starts):
    if min(starts) < 0:
        with pytest.raises(ValueError, match="greater than or equal to 0"):
            N4Parameters(section_starts=starts)
    else:
        refused(correct, volume, "--section-starts", tmp_path, section_starts=starts)


def test_knots_farther_apart_than_the_volume_are_refused(volume, correct, tmp_path):
    words = refused(correct, volume, "0.5 mm along z", tmp_path, spline_distance_mm=(0.1, 0.1, 0.5))
    assert "0.25 mm" in words


def test_the_spline_distance_is_in_itks_order_and_sets_the_control_points(volume, correct, caplog):
    caplog.set_level("INFO")
    correct(volume, spline_distance_mm=(0.1, 0.2, 0.25), iterations=(2,))
    # 0.25, 0.36 and 0.43 mm along z, y and x.
    assert "4 x 5 x 8 control points (z y x)" in caplog.text


def test_the_variation_of_each_section_is_noted(write_image, biased, correct):
    source = write_image("v.ome.zarr", biased)
    given = {"section_starts": STARTS, "shrink_factor": 1, "mask": None}
    path, metrics = correct(source, **given)
    found = metrics.figures["variation"]
    assert [section["number"] for section in found] == [1, 2, 3]
    stops = [*STARTS[1:], len(biased)]
    for section, start, stop in zip(found, STARTS, stops, strict=True):
        for name, voxels in (("cv_before", biased), ("cv_after", read(path))):
            planes = voxels[start:stop].astype(np.float64)
            assert section[name] == pytest.approx(planes.std() / planes.mean(), rel=1e-4)
