"""Places that cannot be written: said before any work, with the place and the remedy."""

import pytest
from runs import last_words

pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.mark.parametrize("place", ["output", "scratch", "work"])
def test_a_place_is_read_only(nextflow, volume, read_only, told, plain, tmp_path, place):
    folder = tmp_path / place
    folder.mkdir()
    option = {"output": "--outdir", "scratch": "--scratch_dir", "work": "-work-dir"}[place]
    outdir = folder if place == "output" else None
    with read_only(folder):
        given = () if place == "output" else (option, folder)
        run = nextflow(tmp_path, *volume, *given, outdir=outdir)
    assert run.code == 1
    words = last_words(run.output)
    assert str(folder) in words
    assert option in words
    assert run.tasks("COMPLETED") == []
    assert list(folder.iterdir()) == []
    told(
        "read-only places",
        f"the {place} folder is read-only",
        "the run is refused before any work is queued",
        "error",
        plain(words, **{place.upper(): folder}),
    )
