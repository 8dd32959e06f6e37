"""A run to which nothing is stated but the input, and one with what it decided."""

import json
import shutil

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


def decisions_of(run):
    """What a run decided, by the flag that states it."""
    twin = run.outdir / "tiles" / "tiles_report.json"
    flags = [own["flag"] for own in json.loads(twin.read_text(encoding="utf-8"))["decisions"]]
    return dict(flag.split(" ", 1) for flag in flags)


@pytest.mark.soak
def test_stated_decisions_lead_to_the_same_bits(succeeding, tiles):
    folder, given = tiles.parent, ("--input", "tiles", "--skip_n4", "--skip_pyramid")
    first = succeeding(folder, *given)
    bits, found = checksums(first.outdir), decisions_of(first)
    none = ["--stitch_flat_field", "--section_surface", "--stack_align"]
    tables = ["--positions", "--displacements"]
    assert {*found} == {"--tile_flip", "--overlap", *none, *tables}
    images = [word for flag in ("--tile_flip", "--overlap") for word in (flag, found[flag])]
    again = succeeding(folder, *given, *images, "-resume")
    assert again.tasks("COMPLETED") == ["PREFLIGHT (run)", "REPORT (tiles)"]
    words = [word for flag in none for word in (flag, found[flag])]
    for flag in tables:
        own = folder / found[flag].replace("SUBJECT", "own")
        shutil.copy(first.outdir / "tiles" / found[flag].replace("SUBJECT", "tiles"), own)
        words += [flag, own]
    last = succeeding(folder, *given, *images, *words, "-resume")
    assert checksums(last.outdir) == bits
    assert decisions_of(last) == {}


def test_what_is_only_stated_is_not_decided(succeeding, tiles):
    given = ("--input", "tiles", "--skip_n4", "--skip_pyramid", "--as_stated")
    run = succeeding(tiles.parent, *given, "--tile_flip", "y", "--overlap", "0.2")
    assert decisions_of(run) == {}
