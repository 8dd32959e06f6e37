"""Layout of a subject: predicted bytes of each step against those written."""

import numpy as np
import pytest

from octane.config.parameters import LeaseParameters
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.step import correct_bias, prepare
from octane.processes.preflight.schema import settings_of
from octane.processes.preflight.space import LEAST_STORED
from octane.processes.preflight.subject import lay_out_subject
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.pyramid.step import build_pyramid
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.step import stitch_section
from octane.store.volumes import open_volume


def held(*paths):
    """Bytes of voxels, without linked files."""
    found = [p.stat() for path in paths for p in path.rglob("c/**/*") if p.is_file()]
    return sum(file.st_size for file in found if file.st_nlink == 1)


@pytest.fixture
def steps():
    """Lay out a run's inputs, and return the bytes that steps write, by name."""

    def run(sources, kind, positions=None, **parameters):
        settings = settings_of({"outdir": "out", **parameters})
        volumes = [open_volume(path) for path in sources]
        layout = lay_out_subject(volumes, kind, settings, positions)
        return {step.name: step for step in layout.bytes()}

    return run


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_every_step_writes_what_lies_between_its_bounds(
    write_phantom, steps, execution, reading, tmp_path, dtype
):
    folder, _ = write_phantom(
        sections=2, tiles=(3, 3), tile_shape=(16, 96, 96), voxel_size=(10.0, 5.0, 5.0),
        speckle_looks=4.0, bias=0.3, dtype=dtype,
    )  # fmt: skip
    mosaics = sorted((folder / "mosaics").iterdir())
    expected = steps(mosaics, "mosaic", resolution=10, save_bias_field=True, n4_shrink_factor=2)
    sections = []
    for source in mosaics:
        whole = tmp_path / "resampled" / source.name
        parameters = ResampleParameters(resolution=(10.0, 10.0, 10.0))
        resample_image(source, whole, parameters, reading, execution)
        sections.append(tmp_path / "stitched" / source.name)
        stitch_section(whole, sections[-1], StitchParameters(), reading, execution)
    stack, n4, bias, pyramid = (tmp_path / f"{name}.ome.zarr" for name in "snbp")
    stack_sections(sections, stack, StackParameters(), reading, execution)
    parameters = N4Parameters(shrink_factor=(2, 2, 2), iterations=(50, 50))
    correct_bias(prepare(stack, n4, parameters, reading, execution, bias), LeaseParameters())
    written = {
        "RESAMPLE": held(tmp_path / "resampled"),
        "STITCH": held(tmp_path / "stitched"),
        "STACK": held(stack),
        "N4": held(n4, bias),
    }
    build_pyramid(n4, pyramid, PyramidParameters(), reading, execution)
    written["PYRAMID"] = held(pyramid)
    assert list(expected) == [*written]
    for name, size in written.items():
        assert LEAST_STORED * expected[name].voxels <= size <= expected[name].voxels, name
    linked = expected["PYRAMID"].linked
    assert LEAST_STORED * linked <= (pyramid / "0/c/0/0/0").stat().st_size <= linked
    assert expected["PYRAMID"].published == linked + expected["PYRAMID"].voxels


def test_blank_slabs_take_nothing(write_image, steps):
    sections = {
        number: write_image(
            f"section_{number}.ome.zarr",
            np.ones((10, 64, 64), np.float32),
            attributes={"kind": "section"},
        )
        for number in (1, 2, 3, 5)
    }
    whole, with_gap = (
        steps([sections[n] for n in numbers], "section", allow_missing_sections=2)
        for numbers in ((1, 2, 3), (1, 2, 5))
    )
    assert {n: s.voxels for n, s in with_gap.items()} == {n: s.voxels for n, s in whole.items()}


@pytest.fixture
def mosaics(write_phantom):
    return sorted((write_phantom()[0] / "mosaics").iterdir())


def test_what_is_switched_off_is_not_counted(mosaics, steps, write_image, rng):
    made = steps(mosaics, "section", skip_n4=True, skip_pyramid=True)
    assert list(made) == ["STACK"]
    assert made["STACK"].published > 0
    # A volume that octane did not write is written again.
    volume = write_image("a.ome.zarr", rng.random((20, 30, 40), np.float32))
    made = steps([volume], "volume", skip_n4=True)
    assert list(made) == ["PYRAMID"]
    assert made["PYRAMID"].linked == 0
    assert made["PYRAMID"].voxels >= 20 * 30 * 40 * 4
    # Other grids are not linked either.
    other = steps(mosaics, "mosaic", resolution=10, pyramid_resolutions="20 40")
    assert other["PYRAMID"].linked == 0


@pytest.mark.parametrize(
    ("skipped", "emptied"),
    [
        ((), {"RESAMPLE", "STITCH", "STACK"}),
        # Their outputs share files.
        (("n4",), {"RESAMPLE", "STITCH"}),
        (("n4", "pyramid"), {"RESAMPLE", "STITCH"}),
    ],
)
def test_what_is_read_by_later_steps_is_emptied(mosaics, steps, skipped, emptied):
    given = {"resolution": 10, **{f"skip_{name}": True for name in skipped}}
    made = steps(mosaics, "mosaic", **given, keep_intermediates=False)
    assert {name for name, step in made.items() if step.is_emptied} == emptied
    assert not any(step.is_emptied for step in steps(mosaics, "mosaic", **given).values())


@pytest.mark.parametrize(("skipped", "emptied"), [((), {"RESAMPLE"}), (("n4",), set())])
def test_a_volume_that_n4_reads_is_emptied(write_image, rng, steps, skipped, emptied):
    volume = write_image("a.ome.zarr", rng.random((20, 30, 40), np.float32))
    given = {"resolution": 20, **{f"skip_{name}": True for name in skipped}}
    made = steps([volume], "volume", **given, keep_intermediates=False)
    assert {name for name, step in made.items() if step.is_emptied} == emptied
