"""Bounds of the bytes that a run writes, and the free space."""

from types import SimpleNamespace

import pytest

from octane.core.errors import OctaneError
from octane.core.units import format_bytes
from octane.processes.preflight import space
from octane.processes.preflight.parameters import WorkflowParameters
from octane.processes.preflight.space import check_space
from octane.processes.preflight.subject import StepBytes

STEPS = [
    StepBytes("RESAMPLE", 40_000_000),
    StepBytes("N4", 30_000_000, published=5_000_000),
    StepBytes("PYRAMID", 10_000_000, linked=20_000_000, published=30_000_000),
]


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Folders that represent separate file systems with given free space."""
    free = {}

    def disk(name, size):
        folder = tmp_path / name
        folder.mkdir()
        free[folder] = size
        return folder

    def own(folder):
        return next(path for path in (folder, *folder.parents) if path in free)

    monkeypatch.setattr(space, "_device", lambda folder: hash(own(folder)))
    monkeypatch.setattr(space, "disk_usage", lambda folder: SimpleNamespace(free=free[own(folder)]))
    return disk


def check(work, outdir, *, is_resumed=False, **more):
    given = WorkflowParameters.model_validate({"outdir": outdir, **more})
    return check_space([STEPS], "a", work, given, is_resumed=is_resumed)


def test_links_are_counted_where_they_are_copied(disks):
    work, outdir = disks("w", 10**9), disks("o", 10**9)
    (made,) = check(work, outdir)
    assert made == "a will write 32 MB to 80 MB in the work folder."
    assert "14 MB to 35 MB in the output" in check(work, outdir, publish_dir_mode="copy")[0]
    assert "40 MB to 100 MB in the work folder" in check(work, outdir, scratch_dir=True)[0]
    # Sizes are spelled for readers.
    assert [format_bytes(size) for size in (0, 999, 5e12)] == ["0 kB", "0.999 kB", "5 TB"]


def test_what_is_emptied_counts_as_far_as_it_is_there_at_a_time(disks):
    work, given = disks("w", 10**9), WorkflowParameters(outdir=disks("o", 10**9))
    emptied = [
        StepBytes(name, size, is_emptied=True)
        for name, size in (("RESAMPLE", 40_000_000), ("STITCH", 20_000_000), ("STACK", 15_000_000))
    ]

    def sizes(*channels):
        return check_space(channels, "a", work, given)[0]

    # RESAMPLE and STITCH need the most; what is kept remains.
    assert sizes([*emptied, *STEPS[1:]]) == "a will write 16 MB to 60 MB in the work folder."
    # The last one that is emptied is there with all that is kept.
    assert "16 MB to 55 MB" in sizes([*emptied[2:], *STEPS[1:]])
    # A channel that is measured and not written; channels need their most at the same time.
    assert "0 kB to 60 MB" in sizes(emptied)
    assert "16 MB to 120 MB" in sizes([*emptied, *STEPS[1:]], emptied)


def test_what_is_on_one_file_system_is_added_up(disks):
    disk = disks("w", 45_000_000)
    (disk / "out").mkdir()
    outdir = disk / "out" / "not" / "yet"
    with pytest.raises(OctaneError) as caught:
        check(disk, outdir, publish_dir_mode="copy")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(
        "a does not fit: work (32 MB to 80 MB) and output (14 MB to 35 MB) take 46 MB to 115 MB on "
        f"the file system of {disk}, which has 45 MB free."
    )
    for remedy in ("-work-dir", "--publish_dir_mode symlink", "-resume"):
        assert remedy in line
    assert "--keep_intermediates false" in line
    (warning,) = check(
        *(disk, outdir), publish_dir_mode="copy", is_resumed=True, keep_intermediates=False
    )[1:]
    assert "--keep_intermediates" not in warning
    assert check(disk, outdir, publish_dir_mode="copy", is_resumed=True)[1:] == [f"Warning: {line}"]
    # Each file system that is too small has a line.
    with pytest.raises(OctaneError) as caught:
        check(disks("small", 10), disks("o", 10), publish_dir_mode="copy")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("free", [32_000_000, 79_999_999])
def test_what_fits_only_with_compression_is_a_warning(disks, free):
    _, warning = check(disks("w", free), disks("o", 10**9))
    assert warning.startswith("Warning: a may not fit: work (32 MB to 80 MB) take")
    assert "give Nextflow a -work-dir with more space" in warning
