"""Inputs that are stores in one file run like those in folders."""

import pytest
from archives import pack
from runs import checksums


@pytest.mark.soak
def test_mosaics_in_files_give_what_those_in_folders_give(succeeding, phantom, quick, tmp_path):
    (tmp_path / "files").mkdir()
    for mosaic in (phantom / "mosaics").iterdir():
        packed = pack(mosaic)
        packed.rename(tmp_path / "files" / packed.name)
    given = (*quick, "--positions", phantom / "positions.csv", "--subject", "brain", "--input")
    one = succeeding(tmp_path, *given, tmp_path / "files", outdir=tmp_path / "one")
    other = succeeding(tmp_path, *given, phantom / "mosaics", outdir=tmp_path / "other")
    found = checksums(one.outdir)
    assert found
    assert found == checksums(other.outdir)
    # And the result, packed, is a volume.
    volume = pack(one.outdir / "brain" / "brain.ome.zarr")
    alone = succeeding(tmp_path, *quick, "--input", volume, outdir=tmp_path / "alone")
    assert (alone.outdir / "brain" / "brain.ome.zarr" / "zarr.json").exists()
