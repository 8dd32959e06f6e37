"""What a step does outside of its tile pipeline, told where that is the larger part.

A pipeline's own sentence is of its workers. N4 has read the volume and fitted its field before they
begin, STITCH the whole mosaic: a step that such a part bounds gets no faster by what its workers
are told to change.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from octane.core.bounds import DOING, STAGES, Means, means_of
from octane.core.metrics import Metrics
from octane.core.timing import summed
from octane.pipeline.readers import READER

__all__ = ["Outside", "note_outside", "outside_of"]

logger = logging.getLogger(__name__)

PARTS = {
    "into memory": "reading the input into memory",
    "read": "reading the input's file",
    "shrink": "reading the voxels that are fitted",
    "weights": "reading the weights",
    "mask": "the mask",
    "level": "levelling the planes",
    "fit": "the fit",
    "project": "projecting the tiles",
    "overlaps": "comparing the overlaps",
    "lease": "waiting for a share of a GPU",
    "to disk": "bringing the result to disk",
}
"""The parts in a sentence."""

READ = ("into memory", "shrink", "weights", "project")
"""Parts that are done by threads which read."""


@dataclass(frozen=True)
class Outside:
    """Where the time of a step went beside its tile pipelines.

    Attributes
    ----------
    label
        What the step is called.
    whole
        Its seconds.
    pipeline
        Those of its tile pipelines.
    parts
        Those of each part outside of them.
    readers
        Of the threads that read in such parts, seconds by stage.
    gpu
        Whether a GPU computed.
    settings
        Of the step.
    """

    label: str
    whole: float
    pipeline: float
    parts: Mapping[str, float]
    readers: Mapping[str, float]
    gpu: bool
    settings: Mapping[str, object]


def outside_of(outside: Outside) -> str | None:
    """Say which part outside of the tile pipelines took most of a step, and what would change it.

    Parameters
    ----------
    outside
        Of one task, or the sums of several.

    Returns
    -------
    str or None
        One sentence of two parts; None where all that is outside is the smaller part.
    """
    parts = outside.parts
    known = sum(parts.values())
    # What has no name, such as the figures, is told with nothing to be changed of it.
    rest = outside.whole - outside.pipeline - known
    if known <= max(outside.pipeline, rest, 0.0):
        return None
    part = max(parts, key=lambda name: parts[name])
    others = {_words(name): seconds for name, seconds in parts.items() if name != part}
    others |= {"the tiles": outside.pipeline, "all else": rest}
    shares = {name: seconds / outside.whole for name, seconds in others.items()}
    beside = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: item[1], reverse=True)
        if share >= 0.05
    )
    told = f"{outside.label}: {_words(part)} took {parts[part] / outside.whole:.0%} of the step"
    return f"{told}{f' ({beside})' if beside else ''}; {_remedy(outside, part)}."


def note_outside(metrics: Metrics) -> None:
    """Keep in the record what this thread did outside of the tile pipelines, and log the sentence.

    Parameters
    ----------
    metrics
        Of a step that has ended.
    """
    pipelines = metrics.figures.get("pipeline", {})
    assert isinstance(pipelines, dict)
    tracks = metrics.timeline.tracks.items()
    outside = Outside(
        metrics.step.upper(),
        metrics.elapsed,
        sum(told["seconds"] for told in pipelines.values()),
        metrics.timeline.own(),
        summed(track.seconds for name, track in tracks if name.startswith(READER)),
        metrics.device.get("backend") == "gpu",
        metrics.settings,
    )
    sentence = outside_of(outside)
    if sentence is not None:
        logger.info(sentence)
    metrics.figures["outside"] = {
        "seconds": outside.whole,
        "pipeline_seconds": outside.pipeline,
        "part_seconds": outside.parts,
        "reader_seconds": outside.readers,
        "bound": sentence,
    }


def _words(part: str) -> str:
    return PARTS.get(part) or DOING.get(part) or part


def _remedy(outside: Outside, part: str) -> str:
    means = means_of(outside.label)
    if part in READ or (part == "mask" and outside.settings.get("mask") != "tissue"):
        return _faster_reading(outside.readers, means)
    match part:
        case "read":
            return f"give it as OME-Zarr, which all workers read, or {means.read}"
        case "mask":
            return "a mask that is given (--n4_mask) is only read"
        case "fit":
            less = "raise --n4_shrink_factor or lower --n4_iterations, which change the field"
            return less if outside.gpu else f"run it on a GPU (-profile gpu), or {less}"
        case "overlaps" if outside.settings.get("refine"):
            return "without --stitch_refine they are compared once, for the seams alone"
        case "lease":
            return "have more GPUs (--gpu_count), or let more tasks share one (--gpu_slots)"
        case "to disk" | "write":
            return "write to faster storage (--scratch_dir, -work-dir)"
        case _:
            return "one core does it: more cpus do not help"


def _faster_reading(readers: Mapping[str, float], means: Means) -> str:
    stage = max(STAGES, key=lambda name: readers.get(name, 0.0))
    share = readers.get(stage, 0.0) / max(sum(readers.values()), 1e-9)
    remedy = "give the task more cpus"
    if stage == "read":
        remedy = means.read
    elif stage == "decode" and means.decode is not None:
        remedy = f"give the task more cpus, or {means.decode}"
    return f"the threads that read spent {share:.0%} of their time {DOING[stage]}: {remedy}"
