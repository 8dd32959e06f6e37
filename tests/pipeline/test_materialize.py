"""Results are made real files, and outlive the work directory."""

import shutil

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(nextflow, phantom, quick, tmp_path_factory):
    """Run with -resume from one folder."""
    folder = tmp_path_factory.mktemp("real")

    def again(*arguments):
        made = nextflow(
            *(folder, *quick, "--input", phantom / "mosaics", "--subject", "s"),
            *("--skip_n4", "-resume", *arguments),
        )
        assert made.code == 0, made.output
        return made

    return again


def links(folder):
    return [p for p in folder.rglob("*") if p.is_symlink()]


def test_a_run_is_made_real_resumed_cleaned_and_verified(run, command):
    first = run()
    results = first.outdir / "s"
    store, report = results / "s.ome.zarr", results / "s_report.html"
    assert store.is_symlink()
    made = command("materialize", first.outdir)
    assert made.returncode == 0, made.stderr
    assert "links made real" in made.stderr.splitlines()[-1]
    assert not links(first.outdir)

    # What is cached is published anew as well, so that nothing of another run stays in its place.
    again = run()
    assert not again.tasks("COMPLETED")
    assert store.is_symlink()
    assert report.is_symlink()
    assert command("materialize", first.outdir).returncode == 0
    assert not links(first.outdir)

    shutil.rmtree(first.folder / "work")
    verified = command("materialize", first.outdir, "--verify")
    assert verified.returncode == 0, verified.stderr
    assert "1 stores with " in verified.stderr
    assert report.stat().st_size > 10_000
    chunk = next((store / "0/c").rglob("[0-9]*/[0-9]*/[0-9]*"))
    chunk.write_bytes(bytes(chunk.stat().st_size))
    damaged = command("materialize", first.outdir, "--verify")
    assert damaged.returncode == 1
    assert f"error: {store}: chunk 0/c/0/0/0" in damaged.stderr


def test_one_thing_is_done_at_a_time(command, tmp_path):
    done = command("materialize", tmp_path, "--verify", "--dry-run")
    assert done.returncode == 1
    assert "exclude each other" in done.stderr
