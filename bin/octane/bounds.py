"""What bounds a step, in one sentence, and which parameter changes it.

More workers, or more GPUs, do nothing for a step that waits for its files: the largest share of the
workers' time says where an hour is best spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DOING", "IDLE", "OTHER", "STAGES", "Spent", "bound_of", "gap_of"]

STAGES = ("read", "decode", "copy", "compute", "encode", "write")
"""What a worker does with a tile, in this order: input, device, output."""
OTHER = "other"
"""Of a tile, and in none of the stages."""
IDLE = "idle"
"""Without a tile."""

DOING = {
    "read": "waiting for the input's files",
    "decode": "decoding",
    "copy": "copying to and from the GPU",
    "compute": "computing",
    "encode": "encoding",
    "write": "waiting for the output's files",
    OTHER: "Python between the stages",
    IDLE: "having no tile",
}
"""The stages in a sentence."""

ON_CORES = ("decode", "compute", "encode")
"""Stages in which a worker has something for a core to do."""

BUSY = 0.7
"""Share of such stages in which a worker really had a core, below which cores are what lacks."""


@dataclass(frozen=True)
class Spent:
    """Where the workers of a step spent their time.

    Attributes
    ----------
    label
        What the work is called.
    seconds
        Of all workers, by stage, :data:`OTHER` and :data:`IDLE` included.
    cpu_seconds
        Of the process on all cores.
    wall
        Seconds from the first tile to the last.
    tiles, workers
        How many.
    read_bytes, written_bytes
        Decoded bytes that went in and out.
    gpu
        Whether a GPU computed.
    gaps
        Seconds of ``wall`` in which no worker computed, by what they did.
    """

    label: str
    seconds: Mapping[str, float]
    cpu_seconds: float
    wall: float
    tiles: int
    workers: int
    read_bytes: int = 0
    written_bytes: int = 0
    gpu: bool = False
    gaps: Mapping[str, float] = field(default_factory=dict)

    def share(self, stage: str) -> float:
        """Of the workers' time that went into a stage."""
        return self.seconds.get(stage, 0.0) / max(sum(self.seconds.values()), 1e-9)

    @property
    def stage(self) -> str:
        """The stage that took most of it; having no tile counts only where it is most of all."""
        most = max((*STAGES, OTHER), key=self.share)
        return IDLE if self.share(IDLE) > max(0.5, self.share(most)) else most

    @property
    def cores_lack(self) -> bool:
        """Whether the stage that bounds is work for cores, and the workers had too few of them."""
        working = sum(self.seconds.get(stage, 0.0) for stage in ON_CORES)
        return not self.gpu and self.stage in ON_CORES and self.cpu_seconds < BUSY * working


def bound_of(spent: Spent) -> str:
    """Say what bounded a step and what would change it.

    Parameters
    ----------
    spent
        Of the step's tile pipeline.

    Returns
    -------
    str
        One sentence of two parts.
    """
    stage = spent.stage
    others = sorted(
        (s for s in (*STAGES, OTHER, IDLE) if s != stage and spent.share(s) >= 0.05),
        key=spent.share,
        reverse=True,
    )
    beside = ", ".join(f"{DOING[s]} {spent.share(s):.0%}" for s in others)
    told = f"{spent.label}: {DOING[stage]} took {spent.share(stage):.0%} of the workers' time"
    return f"{told}{f' ({beside})' if beside else ''}; {_remedy(spent)}."


def gap_of(spent: Spent) -> str:
    """Say for how long no worker computed, or waited for a GPU to, and what they did meanwhile.

    It is the host's view: what a GPU still computes while its worker reads on is not in it.

    Parameters
    ----------
    spent
        Of the step's tile pipeline, with its gaps.

    Returns
    -------
    str
        One sentence.
    """
    waited = sum(spent.gaps.values())
    what = "no worker waited for the GPU to compute" if spent.gpu else "no worker computed"
    told = f"{spent.label}: for {waited / max(spent.wall, 1e-9):.0%} of the time {what}"
    parts = {s: spent.gaps.get(s, 0.0) / max(waited, 1e-9) for s in DOING}
    causes = sorted(parts, key=lambda stage: parts[stage], reverse=True)
    shares = [f"{DOING[s]} {parts[s]:.0%}" for s in causes if parts[s] >= 0.05]
    return f"{told}; what they did instead: {', '.join(shares)}." if shares else f"{told}."


def _remedy(spent: Spent) -> str:
    if spent.cores_lack:
        return (
            f"{_counted(spent.workers)} had {spent.cpu_seconds / max(spent.wall, 1e-9):.1f} cores: "
            "leave the node's cores to it, or give the task more cpus"
        )
    match spent.stage:
        case "read":
            rate = spent.read_bytes / max(spent.wall, 1e-9) / 1e6
            return (
                f"{rate:.0f} MB/s came in: keep the input on faster storage, or raise --prefetch "
                "where the storage is slow to answer"
            )
        case "decode":
            return "give the task more cpus, or store the input in blosc-lz4, which decodes faster"
        case "copy":
            return "see that --pinned is on, or try --backend cpu: so little work is not worth it"
        case "compute":
            if spent.gpu:
                return "the GPU is what limits: more GPUs (gpu_count), not more cpus"
            return "give the task more cpus, or a GPU (-profile gpu)"
        case "encode":
            return "give the task more cpus, or a faster codec (blosc-lz4, or none)"
        case "write":
            rate = spent.written_bytes / max(spent.wall, 1e-9) / 1e6
            return (
                f"{rate:.0f} MB/s went out: write to faster storage (--scratch_dir, -work-dir), or "
                "choose the codec zstd, which makes fewer bytes"
            )
        case "idle":
            if spent.workers == 1:
                return "what comes before and after the tiles is longer: more cpus do not help"
            return f"{spent.tiles} tiles are too few for {spent.workers} workers: fewer cpus do"
        case _:
            return "the tiles are so small that Python's own time shows: use larger ones"


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
