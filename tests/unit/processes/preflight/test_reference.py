"""Which channel is the reference, and which are written, if nobody states it."""

import numpy as np
import pytest
from foreign_images import foreign_image
from tile_writers import tiles_of, write_ome_tiff

from octane.processes.preflight.step import plan_of
from octane.store.image import open_image

SPACING, OVERLAP = (10.0, 5.0, 5.0), (0.25, 0.3)
TISSUE, NOISE, ANGLES = "GFP", "blank", "slow axis"


@pytest.fixture
def channels_of(rng):
    """A tile or a volume in channels of these names: noise wherever no tissue is."""

    def made(voxels, names):
        noise = [rng.normal(1, 0.3, voxels.shape).clip(0) for _ in names]
        return [
            voxels if name == TISSUE else (voxels.mean() * own).astype(voxels.dtype)
            for name, own in zip(names, noise, strict=True)
        ]

    return made


@pytest.fixture
def source(write_phantom, channels_of, tmp_path):
    """Write a phantom's sections as tiles, as mosaics or as sections of several channels."""

    def write(kind, names):
        folder, _ = write_phantom(
            **{"sections": 2, "tiles": (3, 3), "tile_shape": (8, 100, 120), "overlap": OVERLAP},
            edge_fraction=0.0,
        )
        (tmp_path / kind).mkdir()
        for path in sorted((folder / "mosaics").iterdir()):
            image, name = open_image(path), path.name.split(".")[0]
            if kind == "tiles":
                for (row, column), voxels in tiles_of(image).items():
                    own = np.stack(channels_of(voxels, names))
                    file = tmp_path / kind / f"{name}_r{row}_c{column}"
                    write_ome_tiff(file, own, SPACING, channels=names)
                continue
            chunks = (1, 8, 100, 120) if kind == "mosaics" else (1, 4, 64, 64)
            own = np.stack(channels_of(image.read(tuple(map(slice, image.grid.shape))), names))
            name = tmp_path / kind / path.name
            foreign_image(name, own, axes="czyx", labels=names, chunks=chunks)
        return tmp_path / kind

    return write


def planned(source, tmp_path, **given):
    made = plan_of({"outdir": str(tmp_path / "results"), "subject": "brain", **given}, source, {})
    flags = [own.flag for own in made.decisions if own.subject == "Channels"]
    return made, flags


@pytest.mark.parametrize("kind", ["tiles", "mosaics", "sections"])
@pytest.mark.parametrize(
    ("names", "flag"),
    [
        ((NOISE, TISSUE), "--channel GFP --channels all"),
        ((TISSUE, NOISE), "--channel GFP --channels all"),
        ((NOISE, ANGLES, TISSUE), "--channel GFP --channels '0 2'"),
        ((ANGLES, TISSUE), "--channel GFP"),
    ],
)
def test_the_reference_is_the_channel_that_shows_tissue(source, tmp_path, kind, names, flag):
    given = {"input_kind": "section"} if kind == "sections" else {}
    made, flags = planned(source(kind, names), tmp_path, **given)
    assert flags == [flag]
    (lead,) = (channel for channel, _ in made.channels if channel.is_reference)
    assert lead.name == TISSUE
    written = [channel.name for channel, _ in made.channels if channel.is_written]
    assert ANGLES not in written


def test_angles_that_are_stated_are_written_and_never_the_reference(source, tmp_path):
    folder = source("mosaics", (ANGLES, TISSUE))
    made, flags = planned(folder, tmp_path, channel_kind=f"{ANGLES}=nearest")
    assert flags == ["--channel GFP --channels all"]
    assert [c.name for c, _ in made.channels if c.is_nearest and c.is_written] == [ANGLES]


def test_only_the_reference_is_decided_among_channels_that_are_chosen(source, tmp_path):
    folder = source("mosaics", (TISSUE, NOISE, "DAPI"))
    made, flags = planned(folder, tmp_path, channels="blank DAPI", overlap="0.25 0.3")
    assert flags == ["--channel blank"]
    assert len(made.channels) == 2


def test_no_channel_that_the_user_names_is_decided(source, tmp_path):
    folder = source("mosaics", (TISSUE, NOISE))
    assert planned(folder, tmp_path, channel=NOISE, overlap="0.25 0.3")[1] == []
