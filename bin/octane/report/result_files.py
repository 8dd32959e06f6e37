"""The files of a subject's results by their names, and what they are.

The report links to them and the crate of its provenance lists them. Both lie in the folder that the
workflow publishes to, and so their links are names in that folder.
"""

from collections.abc import Sequence

from octane.report.records import Record

__all__ = ["result_files"]


def result_files(subject: str, records: Sequence[tuple[str, Record]]) -> dict[str, str]:
    """What the workflow publishes for a subject beside its report.

    Parameters
    ----------
    subject
        Begins the names of volumes.
    records
        Of all tasks, each with the name that its files begin with.

    Returns
    -------
    dict
        What each file is, by its name below the subject's folder; a folder's ends in a slash.
    """
    steps = {record.step for _, record in records}
    found = {}
    for step, ending, what in (
        ("pyramid", "", "the finished volume, one level per resolution, OME-Zarr"),
        ("n4", "_n4", "the corrected volume, OME-Zarr"),
        ("stack", "_stack", "the assembled volume, OME-Zarr"),
    ):
        if step in steps:
            found[f"{subject}{ending}.ome.zarr/"] = what
            break
    else:
        for name, record in records:
            if record.step == "resample" and record.settings.get("layout") == "volume":
                volume = name.removesuffix("_resample")
                found[f"{volume}.ome.zarr/"] = "the resampled volume, OME-Zarr"
    if any("--save-bias-field" in record.command for _, record in records):
        found[f"{subject}_bias.ome.zarr/"] = "the bias field, OME-Zarr"
    for name, record in records:
        found[f"metrics/{name}_metrics.json"] = f"record of {record.step.upper()}"
    return found
