"""A subject's plan, as tests look at it."""


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
