"""The tables of docs/performance.md."""

from _table_parts import Table, measured, table, where

__all__ = ["PERFORMANCE_TABLES"]

SIDES = {"read": "reading and decoding", "compute": "computing", "write": "encoding and writing"}
SHOWN_SHARE = 0.05


def _overhead(record: dict) -> str:
    found = record["overhead"]
    return table(
        ("spans", "seconds, median", "to off", "seconds, smallest", "to off"),
        [
            (
                mode,
                f"{found['seconds'][mode]:.3f}",
                f"{found['ratio'][mode]:.3f}",
                f"{found['smallest'][mode]:.3f}",
                f"{found['ratio_of_smallest'][mode]:.3f}",
            )
            for mode in found["seconds"]
        ],
    )


def _bounds(record: dict) -> str:
    return table(
        ("made slow", "named", "the sentence"),
        [(made, told["named"], told["sentence"]) for made, told in record["bounds"].items()],
    )


def _workers(record: dict) -> str:
    return table(
        ("workers", "seconds", "speed-up", "efficiency", "the sentence"),
        [
            (
                f"**{case['workers']}** (derived)" if case["derived"] else str(case["workers"]),
                f"{case['seconds']:.2f}",
                f"{case['speed_up']:.2f}",
                f"{case['efficiency']:.2f}",
                case["bound"],
            )
            for case in record["workers"]
        ],
    )


def _cache(record: dict) -> str:
    return table(
        ("files", "seconds", "the sentence"),
        [(name, f"{of['seconds']:.2f}", of["bound"]) for name, of in record["cache"].items()],
    )


def _prefetch(record: dict) -> str:
    return table(
        ("tiles fetched ahead", "seconds", "speed-up", "the sentence"),
        [
            (
                f"**{case['prefetch']}** (derived)" if case["derived"] else str(case["prefetch"]),
                f"{case['seconds']:.2f}",
                f"{case['speed_up']:.2f}",
                case["bound"],
            )
            for case in record["prefetch"]["cases"]
        ],
    )


def _processes(record: dict) -> str:
    return table(
        ("sections at once", "seconds of all", "speed-up", "efficiency", "most time goes into"),
        [
            (
                str(case["processes"]),
                f"{case['seconds_of_all']:.2f}",
                f"{case['speed_up']:.2f}",
                f"{case['efficiency']:.2f}",
                SIDES[case["bound_by"]],
            )
            for case in record["processes"]
        ],
    )


def _gpus(record: dict) -> str:
    return table(
        (
            "GPUs (simulated)",
            "slots",
            "seconds",
            "speed-up",
            "efficiency",
            "GPU busy",
            "median wait, s",
            "the slots' time is",
        ),
        [
            (
                str(case["gpus"]),
                str(case["slots"]),
                f"{case['seconds']:.1f}",
                f"{case['speed_up']:.2f}",
                f"{case['efficiency']:.2f}",
                f"{case['gpu_busy']:.0%}",
                f"{case['median_wait']:.2f}",
                "; ".join(
                    f"{name} {share:.0%}"
                    for name, share in case["share_of_slots"].items()
                    if share >= SHOWN_SHARE
                ),
            )
            for case in record["gpus"]["cases"]
        ],
    )


def _lab_day(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        first, work = case["first"], case["work"]
        rows.append(
            (
                f"{case['subjects']} x {case['sections']}",
                str(case["tasks"]),
                str(case["queueSize"]),
                case["pollInterval"],
                "on" if case["trace_report"] else "off",
                f"{first['seconds'] / 60:.1f}",
                f"{case['ms_per_task']:.0f}",
                f"{1000 * first['cpu_seconds'] / case['tasks']:.0f}",
                f"{first['java_peak_bytes'] / 1e6:.0f}",
                f"{work['files'] + work['folders'] + work.get('links', 0)}",
                f"{work['bytes'] / 1e6:.0f}",
                f"{case['resumed']['seconds']:.0f}",
            )
        )
    return table(
        (
            "subjects x sections",
            "tasks",
            "at once",
            "asked every",
            "`trace_report`",
            "minutes",
            "ms a task",
            "ms of a core a task",
            "Java, MB",
            "files, folders and links in work",
            "MB in work",
            "`-resume`, s",
        ),
        rows,
    )


PERFORMANCE_TABLES: dict[str, Table] = {
    "profiling_where": measured("profiling", where()),
    "profiling_overhead": measured("profiling", _overhead),
    "profiling_bounds": measured("profiling", _bounds),
    "scaling_where": measured("scaling", where()),
    "scaling_workers": measured("scaling", _workers),
    "scaling_cache": measured("scaling", _cache),
    "scaling_prefetch": measured("scaling", _prefetch),
    "scaling_processes": measured("scaling", _processes),
    "scaling_gpus": measured("scaling", _gpus),
    "lab_day": measured("lab_day", _lab_day),
    "lab_day_where": measured("lab_day", where()),
}
