"""Real images with several channels, cut into tiles: MOSAIC and STITCH by their commands."""

import json

import numpy as np
import pytest
from real_channels import cut_image

from octane.config.parameters import InputParameters
from octane.store.image import open_image

SPACING = (1.0, 0.5, 0.5)
PATTERN = "s{section}_r{row}_c{column}_{channel}.ome.tif"
OVERLAP = ("--overlap", "0.25", "0.25")


@pytest.fixture
def succeed(command, tmp_path):
    """Run a command of ``bin/`` in the test's folder."""

    def run(*words):
        made = command(*words, "--workers", "1", cwd=tmp_path)
        assert made.returncode == 0, made.stderr

    return run


@pytest.fixture
def stitched(succeed, tmp_path):
    """Stitch each channel, the others like the reference; their voxels and records by name."""

    def run(cut, reference, *words):
        cut.write(tmp_path / "tiles", SPACING, one_file=True)
        succeed("mosaic", "tiles", "grids", *OVERLAP)
        found = {}
        for channel in (reference, *(name for name in cut.channels if name != reference)):
            like = [] if channel == reference else ["--reference", f"{reference}.json"]
            succeed(
                *("stitch", "grids/section_01.ome.zarr", f"{channel}.ome.zarr", *OVERLAP),
                *("--channel", channel, "--metrics", f"{channel}.json", *words, *like),
            )
            image = open_image(tmp_path / f"{channel}.ome.zarr")
            voxels = image.read(tuple(slice(n) for n in image.grid.shape))
            found[channel] = voxels[0], json.loads((tmp_path / f"{channel}.json").read_text())
        return found

    return run


def test_files_of_a_channel_give_the_mosaics_of_files_with_all_channels(succeed, tmp_path):
    cut = cut_image("neocortex-3Ch", (3, 2))
    cut.write(tmp_path / "one", SPACING, one_file=True)
    cut.write(tmp_path / "apart", SPACING, one_file=False)
    succeed("mosaic", "one", "made_one", *OVERLAP)
    succeed("mosaic", "apart", "made_apart", *OVERLAP, "--tile_pattern", PATTERN)
    for channel in cut.channels:
        one, apart = (
            open_image(tmp_path / made / "section_01.ome.zarr", InputParameters(channel=channel))
            for made in ("made_one", "made_apart")
        )
        whole = tuple(slice(n) for n in one.grid.shape)
        np.testing.assert_array_equal(apart.read(whole), one.read(whole))
        first = one.read((slice(1), *map(slice, cut.tile)))
        np.testing.assert_array_equal(first, cut.tile_voxels((0, 0))[cut.channels.index(channel)])
        assert (one.attributes["channel"], apart.attributes["channel"]) == (channel, channel)


def test_channels_become_the_image_that_was_cut(stitched):
    cut = cut_image("neuron-4Ch", (3, 2))
    found = stitched(cut, "AF568")
    for channel, whole in zip(cut.channels, cut.voxels, strict=True):
        voxels, record = found[channel]
        assert record["channel"] == channel
        part = tuple(slice(n) for n in voxels.shape)
        single = cut.single_pixels()[part]
        np.testing.assert_array_equal(voxels[single], whole[part][single])
        # A sum of weights that are rounded.
        np.testing.assert_allclose(voxels, whole[part], rtol=1e-6)


@pytest.mark.soak
def test_channels_lie_where_the_reference_was_refined(stitched):
    cut = cut_image("neuron-4Ch", (3, 2), error=4)
    found = stitched(cut, "AF568", "--stitch_refine")
    places = {name: record["figures"]["positions"] for name, (_, record) in found.items()}
    assert all(own == places["AF568"] for own in places.values())
    first = cut.offsets[0, 0]
    for (row, column), offset in cut.offsets.items():
        own, zero = (np.array(places["DAPI"][key]) for key in (f"{row},{column}", "0,0"))
        assert own - zero == pytest.approx(np.subtract(offset, first) * 0.5, abs=0.05)
