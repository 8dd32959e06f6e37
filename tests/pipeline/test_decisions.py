"""A run to which nothing is stated but the input, and one with what it decided."""

import json
import shlex

import pytest
from runs import checksums
from tile_writers import tiles_of, write_ome_tiff

from octane.config.parameters import ExecutionParameters
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import make_phantom
from octane.store.image import open_image


@pytest.fixture
def tiles(tmp_path):
    """Files of two sections, whose rows run against the images, without places."""
    parameters = PhantomParameters(
        **{"sections": 2, "tiles": (3, 3), "tile_shape": (12, 100, 90), "edge_fraction": 0.0},
        voxel_size=(10.0, 5.0, 5.0),
        section_thickness=60.0,
    )
    make_phantom(tmp_path / "made", parameters, ExecutionParameters(workers=1))
    folder = tmp_path / "tiles"
    folder.mkdir()
    for path in (tmp_path / "made" / "mosaics").iterdir():
        for (row, column), voxels in tiles_of(open_image(path)).items():
            name = f"{path.name.split('.')[0]}_r{2 - row}_c{column}"
            write_ome_tiff(folder / name, voxels, (10.0, 5.0, 5.0))
    return folder


def test_stated_decisions_lead_to_the_same_bits(succeeding, tiles):
    given = ("--input", "tiles", "--skip_n4", "--skip_pyramid")
    first = succeeding(tiles.parent, *given)
    twin = first.outdir / "tiles" / "tiles_report.json"
    decisions = json.loads(twin.read_text(encoding="utf-8"))["decisions"]
    flags = [word for own in decisions for word in shlex.split(own["flag"])]
    assert flags[::2] == ["--tile_flip", "--overlap"]
    bits = checksums(first.outdir)
    again = succeeding(tiles.parent, *given, *flags, "-resume")
    assert again.tasks("COMPLETED") == ["PREFLIGHT (run)", "REPORT (tiles)"]
    assert checksums(again.outdir) == bits
    assert json.loads(twin.read_text(encoding="utf-8"))["decisions"] == []
