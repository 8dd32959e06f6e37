"""What bounds a step, in one sentence, and which parameter changes it.

More workers, or more GPUs, do nothing for a step that waits for its files: the largest share of the
workers' time says where an hour is best spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "DOING",
    "IDLE",
    "OTHER",
    "STAGES",
    "Means",
    "Spent",
    "bound_of",
    "codec_of",
    "gap_of",
    "means_of",
]

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

FASTER = {"zstd": "blosc-lz4, or none", "blosc-lz4": "none"}
"""Codecs that encode faster than another."""


@dataclass(frozen=True)
class Means:
    """What there is to be changed of one step alone.

    Attributes
    ----------
    read
        How its input comes faster.
    decode
        How its input decodes faster; None where nothing is known of it.
    gpu
        Whether it can run on one.
    """

    read: str = "keep the input on faster storage (-work-dir, where an earlier step wrote it)"
    decode: str | None = None
    gpu: bool = False


MEANS = {
    "RESAMPLE": Means(
        "keep the input on faster storage",
        "store the input in blosc-lz4, which decodes faster",
        gpu=True,
    ),
    "STITCH": Means(decode="choose --resample_codec none, which leaves nothing to decompress"),
    "STACK": Means(decode="choose --stitch_codec none, which leaves nothing to decompress"),
    "N4": Means(
        decode="where the run begins with the volume, store it in blosc-lz4, which decodes faster",
        gpu=True,
    ),
    "PYRAMID": Means(
        "keep the input and the levels on faster storage (--scratch_dir, -work-dir)",
        "choose --n4_codec and --pyramid_codec blosc-lz4, which decodes faster",
    ),
}
"""By the first word of what the work is called."""


def means_of(label: str) -> Means:
    """What there is to be changed of the step that does a work of this name."""
    return MEANS.get(label.partition(" ")[0], Means())


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
        How many; the workers are those of one task.
    read_bytes, written_bytes
        Decoded bytes that went in and out; 0 where they were not counted.
    gpu
        Whether a GPU computed.
    gaps
        Seconds of ``wall`` in which no worker computed, by what they did.
    tasks
        How many there were.
    codec
        Of the result; None where there is none to be chosen.
    looks_ahead
        Whether input is asked for before its turn.
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
    tasks: int = 1
    codec: str | None = None
    looks_ahead: bool = False

    @property
    def means(self) -> Means:
        """What there is to be changed of its step alone."""
        return means_of(self.label)

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


def codec_of(settings: Mapping[str, object]) -> str | None:
    """The codec among a step's parameters; None where it has none."""
    codec = settings.get("codec")
    return codec if isinstance(codec, str) else None


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
    means = spent.means
    match spent.stage:
        case "read":
            ahead = "raise --prefetch where the storage is slow to answer"
            told = _either(means.read, ahead if spent.looks_ahead else None)
            return _rate(spent.read_bytes, spent, "came in") + told
        case "decode":
            return _with_cpus(spent, means.decode)
        case "copy":
            return "see that --pinned is on, or try --backend cpu: so little work is not worth it"
        case "compute":
            if spent.gpu:
                return (
                    "the GPU is what limits, not the cpus: more GPUs (gpu_count) let more tasks "
                    "run at once"
                )
            return _with_cpus(spent, "run it on a GPU (-profile gpu)" if means.gpu else None)
        case "encode":
            faster = FASTER.get(spent.codec or "")
            return _with_cpus(spent, f"choose a faster codec ({faster})" if faster else None)
        case "write":
            smaller = "choose the codec zstd, which makes fewer bytes"
            told = _either(
                "write to faster storage (--scratch_dir, -work-dir)",
                None if spent.codec in (None, "zstd") else smaller,
            )
            return _rate(spent.written_bytes, spent, "went out") + told
        case "idle":
            if spent.workers == 1:
                return "what comes before and after the tiles is longer: more cpus do not help"
            of, each = (f" of {spent.tasks} tasks", " each") if spent.tasks > 1 else ("", "")
            return (
                f"{spent.tiles} tiles{of} are too few for {spent.workers} workers{each}: "
                "fewer cpus do"
            )
        case _:
            return "Python's own time shows: of a mosaic, larger tiles take less of it"


def _either(*ways: str | None) -> str:
    """What may be done, one or the other."""
    return ", or ".join(way for way in ways if way is not None)


def _with_cpus(spent: Spent, way: str | None) -> str:
    """More cpus, where they help, or what else there is."""
    helps = spent.tiles > spent.workers * spent.tasks
    told = _either("give the task more cpus" if helps else None, way)
    return told or "each tile had a worker of its own: more cpus do not help"


def _rate(size: int, spent: Spent, how: str) -> str:
    return f"{size / max(spent.wall, 1e-9) / 1e6:.0f} MB/s {how}: " if size else ""


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
