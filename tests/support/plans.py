"""A run as PREFLIGHT gets it, and a subject's plan, as tests look at it."""

from octane.processes.preflight.request import Run


def content(plan):
    """The plan by channel and step, with the inputs of each channel."""
    tasks = plan.tasks(is_chosen_alone=True)
    channels = [
        {"id": own.id, "written": own.is_written, "flags": own.flags, "items": items}
        for own, (_, items) in zip(tasks.channels, plan.channels, strict=True)
    ]
    return {
        "kind": tasks.kind,
        "channels": channels,
        "joined": tasks.joins_channels,
        "lead": tasks.lead_id,
        "flags": tasks.flags,
        "tissue": tasks.shares_tissue,
    }


def launched(folder, *subjects, parameters=None, command="nextflow run main.nf", **flags):
    """A run that was launched in a folder, as PREFLIGHT gets it; ``flags`` are as in Run."""
    (folder / "work").mkdir(exist_ok=True)
    names = ("is_contained", "is_resumed", "is_stub", "is_published")
    given = {"outdir": str(folder / "results"), **(parameters or {})}
    own = [flags.get(name, False) for name in names]
    return Run(given, subjects, command, folder, folder / "work", *own)
