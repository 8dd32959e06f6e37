"""Tables of the report: settings, seconds, bytes, bounds, GPUs, versions and machines by step."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from octane.config.params import STEPS
from octane.core.records import ORDER, Context, LeaseFigures, PipelineFigures, Record
from octane.core.timing import summed
from octane.report.timing import step_bound

BEFORE = ("preflight", "phantom")
"""Steps that serve checks and tests."""


def by_step(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group records by their step, in the order of the workflow; unknown steps come last."""
    order = dict.fromkeys((*BEFORE, *ORDER, *sorted(record.step for record in records)))
    grouped = {step: [record for record in records if record.step == step] for step in order}
    return {step: of for step, of in grouped.items() if of}


def tables(records: Sequence[Record], *, workflow: bool) -> Context:
    """Sum up the tasks of each step for the page; ``workflow`` selects its default values."""
    steps = by_step(records)
    versions: dict[str, dict[str, None]] = {}
    machines: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            versions.setdefault(name, {})[version] = None
    for step, of in steps.items():
        for record in of:
            text = _described({**record.device, **record.host})
            machines.setdefault(text, {})[step] = None
    return {
        "steps": steps,
        "expected": ORDER,
        "settings": {step: _settings(of, step, workflow=workflow) for step, of in steps.items()},
        "seconds": {step: sum(r.total for r in of) for step, of in steps.items()},
        "traffic": {step: summed(r.traffic for r in of) for step, of in steps.items()},
        "stages": {step: _stages(of) for step, of in steps.items()},
        "bounds": {step: bound for step, of in steps.items() if (bound := step_bound(of))},
        "devices": {s: dict.fromkeys(_device(r.device) for r in of) for s, of in steps.items()},
        "gpus": gpu_use(steps),
        "versions": versions,
        "machines": machines,
    }


def _stages(records: Sequence[Record]) -> dict[str, tuple[float | None, float | None]]:
    """Seconds and bytes of each stage of a step."""
    spent, moved = summed(r.seconds for r in records), summed(r.traffic for r in records)
    # The seconds of writing and the bytes written have two names.
    names = dict.fromkeys("written" if n == "write" else n for n in (*spent, *moved))
    return {
        n: (spent.get("write" if n == "written" else n), moved.get(n))
        for n in names
        if n != "total"
    }


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(records: Sequence[Record], step: str, *, workflow: bool) -> list[Context]:
    """Settings of a step beside their defaults; those that differ come first."""
    models = [STEPS[step], STEPS["input"], STEPS["execution"]] if step in STEPS else []
    fields = {name: info for model in models for name, info in model.model_fields.items()}
    defaults = {n: v for model in models for n, v in model().recorded().items()}
    rows: list[Context] = []
    for name in dict.fromkeys(name for record in records for name in record.settings):
        # Records of one step, such as those of several sections, may differ.
        values = list(dict.fromkeys(_shown(record.settings.get(name)) for record in records))
        noted = fields[name].json_schema_extra if name in fields else None
        extra = noted if isinstance(noted, Mapping) else {}
        default = _shown(defaults[name]) if name in defaults else None
        if workflow and "workflow_default" in extra:
            default = _shown(extra["workflow_default"])
        rows.append(
            {
                "name": name,
                "value": "; ".join(values),
                "default": default,
                "unit": extra.get("unit") or "",
                "changed": default is not None and values != [default],
            }
        )
    return sorted(rows, key=lambda row: not row["changed"])


def _described(facts: Mapping[str, object]) -> str:
    """Describe a device or machine in one line."""
    parts = []
    for name, value in facts.items():
        if name.endswith("_bytes") and isinstance(value, int | float):
            parts.append(f"{name.removesuffix('_bytes')} {value / 1e9:.3g} GB")
        elif value is not None and not (name == "processor" and value == facts.get("device")):
            parts.append(f"{name} {_shown(value)}")
    return ", ".join(parts)


def _device(facts: Mapping[str, object]) -> str:
    backend = str(facts.get("backend", "cpu")).upper()
    return f"{backend} ({facts['device']})" if backend == "GPU" and "device" in facts else backend


class GpuUse(BaseModel):
    """Use of GPUs by the tasks of a step.

    Attributes
    ----------
    tasks, on_gpu
        Number of tasks, and of those that computed on a GPU.
    waited, longest
        Seconds of waiting for a share of a GPU, of all tasks and of the longest wait.
    failed
        Failed tries: reason and number.
    rates
        GB/s ``to_device`` and ``to_host``, by the clock of the GPU.
    """

    tasks: int
    on_gpu: int
    waited: float
    longest: float
    failed: dict[str, int]
    rates: dict[str, float]


def gpu_use(steps: Mapping[str, Sequence[Record]]) -> dict[str, GpuUse]:
    """Sum up the use of GPUs by step; steps that never requested one are left out."""
    found = {}
    for step, records in steps.items():
        leases = [lease for record in records if (lease := LeaseFigures.of(record)) is not None]
        failed = Counter(
            attempt.outcome
            for lease in leases
            for attempt in lease.attempts
            # On a machine without a GPU nothing was tried and nobody waited.
            if attempt.outcome != "done" and (attempt.gpu or lease.slot_wait_seconds > 0)
        )
        copies = [p.transfers for r in records for p in PipelineFigures.of(r).values()]
        size = summed({way: of.bytes for way, of in one.items()} for one in copies)
        seconds = summed({way: of.seconds for way, of in one.items()} for one in copies)
        waits = [lease.slot_wait_seconds for lease in leases]
        use = GpuUse(
            tasks=len(records),
            on_gpu=sum(lease.backend == "gpu" for lease in leases),
            waited=sum(waits),
            longest=max(waits, default=0.0),
            failed=dict(failed),
            rates={way: size[way] / of / 1e9 for way, of in seconds.items() if of > 0},
        )
        if use.on_gpu or use.waited or use.failed:
            found[step] = use
    return found
