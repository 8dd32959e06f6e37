"""A run as PREFLIGHT gets it, and a subject's plan, as tests look at it."""

from octane.processes.preflight.request import Run


def content(plan):
    """The plan by channel and step, with the inputs of each channel."""
    tasks = plan.tasks(chosen_alone=True)
    channels = [
        {"id": own.id, "written": own.is_written, "flags": own.flags, "items": items}
        for own, (_, items) in zip(tasks.channels, plan.channels, strict=True)
    ]
    return {
        "kind": tasks.kind,
        "channels": channels,
        "joined": tasks.is_joined,
        "lead": tasks.lead,
        "flags": tasks.flags,
        "tissue": tasks.shares_tissue,
    }


def launched(folder, *subjects, **changes):
    """A run that was launched in a folder, as PREFLIGHT gets it; ``parameters`` are its own."""
    parameters = {"outdir": str(folder / "results"), **changes.pop("parameters", {})}
    (folder / "work").mkdir(exist_ok=True)
    given = {
        "command": "nextflow run main.nf",
        "folder": folder,
        "work": folder / "work",
        **dict.fromkeys(("is_contained", "is_resumed", "is_stub", "is_published"), False),
    }
    return Run(parameters=parameters, asked=subjects, **{**given, **changes})
