"""Plans for Nextflow's -stub-run, from the names of inputs alone, which may be empty files."""

from collections.abc import Mapping
from pathlib import Path

from octane.processes.preflight.parameters import Settings
from octane.processes.preflight.states import PlanContent, plan_content
from octane.processes.preflight.subject import needs_resample
from octane.processes.preflight.tasks import ChannelTasks, SubjectTasks
from octane.store.chunks import is_store
from octane.store.volumes import bare_name

SINGLE_INPUT = "volume"
"""Name of an input that is not a folder of stores."""


def stub_plan(subject: str, settings: Settings, files: Mapping[str, Path]) -> PlanContent:
    """Plan a subject: a folder of stores holds mosaics, and anything else is one volume."""
    source = files["input"]
    within = source.is_dir() and not is_store(source)
    stores = {bare_name(p): p.name for p in sorted(source.iterdir()) if within and is_store(p)}
    items, kind = stores or {SINGLE_INPUT: ""}, "mosaic" if stores else "volume"
    is_whole = not settings.workflow.until
    used = {
        "resample": needs_resample(kind, settings),
        "stitch": kind == "mosaic",
        "stack": kind == "mosaic" and is_whole,
        "n4": is_whole and not settings.workflow.skip_n4,
        "pyramid": is_whole and not settings.workflow.skip_pyramid,
    }
    steps = [step for step, is_used in used.items() if is_used]
    # Positions and gains come from the sections' own tables, which only real inputs have.
    file_parameters = {*files} - {"positions", "stitch_gain"}
    inputs = {f"{subject}/input/{item}": [file] for item, file in items.items()}
    tasks = SubjectTasks(
        *(subject, kind, [*items], [ChannelTasks("")], steps, file_parameters),
        {"report": ""},
        empties_images=not settings.workflow.keep_intermediates,
    )
    return plan_content(tasks, files, inputs)
