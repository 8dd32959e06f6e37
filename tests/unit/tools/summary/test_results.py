"""Files of a run and of an earlier one in a subject's folder."""

import pytest

from octane.tools.summary.results import (
    MadeFile,
    made_files,
    remove_empty_stores,
    set_aside,
    unpublished_results,
)


@pytest.fixture
def task(tmp_path):
    """Write a task's folder with files; returns the folder."""

    def write(name, *files):
        folder = tmp_path / "work" / name
        folder.mkdir(parents=True)
        (folder / ".command.run").touch()
        for file in files:
            (folder / file).write_text(name)
        return folder

    return write


@pytest.fixture
def outdir(tmp_path):
    folder = tmp_path / "out"
    (folder / "a" / "metrics").mkdir(parents=True)
    return folder


def test_files_are_found_where_they_are_published(task, outdir):
    folder = task("1", "stack_metrics.json", "a.ome.zarr", "other.csv")
    link = outdir / "a" / "metrics" / "stack_metrics.json"
    link.symlink_to(folder / "stack_metrics.json")
    given = folder.parent / "section.ome.zarr"
    names = ["stack_metrics.json", "a.ome.zarr", "other.csv"]
    files = [("a", folder / name) for name in names] + [("a", given)]
    found = made_files(outdir, files, {"a": [str(folder / "other.csv")]})
    assert found == [
        MadeFile("a", link, folder),
        # Not published yet.
        MadeFile("a", outdir / "a" / "a.ome.zarr", folder),
    ]


def test_results_that_are_not_this_runs_are_missing(task, outdir):
    folder, earlier = task("1", "a.csv", "b.csv", "c.csv"), task("0", "a.csv")
    (outdir / "a" / "a.csv").symlink_to(earlier / "a.csv")
    (outdir / "a" / "b.csv").symlink_to(folder / "b.csv")
    for store, content in ((folder / "a.ome.zarr", "1"), (outdir / "a" / "a.ome.zarr", "1")):
        store.mkdir()
        (store / "zarr.json").write_text(content)
    files = [folder / name for name in ("a.csv", "b.csv", "c.csv", "a.ome.zarr")]
    names = ["a.csv", "b.csv", "c.csv", "d.csv", "a.ome.zarr"]
    assert unpublished_results(outdir, "a", files, names) == ["a.csv", "c.csv", "d.csv"]
    (outdir / "a" / "a.ome.zarr" / "zarr.json").write_text("2")
    assert "a.ome.zarr" in unpublished_results(outdir, "a", files, names)


def test_results_of_an_earlier_run_are_set_aside(task, outdir):
    folder = task("1", "stack_metrics.json")
    own = outdir / "a" / "metrics" / "stack_metrics.json"
    own.symlink_to(folder / "stack_metrics.json")
    (outdir / "a" / "a.ome.zarr").symlink_to(folder)
    (outdir / "a" / "metrics" / "n4_metrics.json").touch()
    (outdir / "a" / "notes.txt").touch()
    set_aside(outdir, "a", [MadeFile("a", own, folder)], "2026", mixed=False)
    left = sorted(str(path.relative_to(outdir / "a")) for path in (outdir / "a").rglob("*"))
    assert left == [
        *("earlier_2026", "earlier_2026/a.ome.zarr", "earlier_2026/metrics"),
        *("earlier_2026/metrics/n4_metrics.json", "metrics", "metrics/stack_metrics.json"),
        "notes.txt",
    ]


def test_what_was_made_of_two_states_is_deleted_with_its_tasks(task, outdir):
    folder, other = task("1", "stack_metrics.json"), task("2", "page.html")
    link = outdir / "a" / "metrics" / "stack_metrics.json"
    link.symlink_to(folder / "stack_metrics.json")
    page = outdir / "a" / "a_report.html"
    page.symlink_to(other / "page.html")
    made = [MadeFile("a", link, folder), MadeFile("a", page, other)]
    set_aside(outdir, "a", made, "2026", mixed=True)
    assert not folder.exists()
    assert not link.is_symlink()
    # It says so.
    assert page.exists()


def test_emptied_stores_are_removed_where_a_task_needed_one(task, tmp_path):
    made = []
    for subject in ("a", "b"):
        folder = task(subject)
        for name in ("s1", "s2"):
            (folder / name / "0").mkdir(parents=True)
            (folder / name / "0" / "emptied.json").touch()
        (folder / "whole" / "0").mkdir(parents=True)
        made.append(MadeFile(subject, tmp_path / subject, folder))
    remove_empty_stores(made, "error: another thing")
    assert (made[0].task / "s1").exists()
    remove_empty_stores(made, f"error: {made[0].task / 's2'} was emptied by a run")
    assert sorted(path.name for path in made[0].task.iterdir()) == [".command.run", "whole"]
    assert (made[1].task / "s1").exists()
