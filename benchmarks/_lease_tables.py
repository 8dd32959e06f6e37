"""The tables of docs/gpu.md."""

from _table_parts import Table, measured, table

__all__ = ["LEASE_TABLES"]


def _lease_cost(record: dict) -> str:
    cost, storm = record["uncontended_ms"], record["storm"]
    return table(
        ("figure", "measured"),
        [
            ("take and give back, nobody else there: median", f"{cost['median']:.2f} ms"),
            ("the same, 99 of 100 are faster than", f"{cost['p99']:.2f} ms"),
            (f"processes killed by SIGKILL among {storm['takers']}", f"{storm['kills']}"),
            ("of them while they held a share", f"{storm['kills_while_holding']}"),
            ("shares granted meanwhile", f"{storm['grants']}"),
            ("shares that were not given back", f"{storm['leaks']}"),
            ("shares given twice", f"{storm['double_grants']}"),
            ("moments with more holders than slots", f"{storm['over_slots']}"),
            ("moments with more memory promised than there is", f"{storm['over_memory']}"),
        ],
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


def _lease_day(record: dict) -> str:
    rows = []
    for name, found in record["day"]["policies"].items():
        waits = found["wait_seconds"].values()
        rows.append(
            (
                name,
                f"{100 * found['idle_with_waiters']:.1f} %",
                f"{found['failed_tries']:.0f}",
                f"{found['given_up']:.1f}",
                *(f"{_minutes(wait['median'])} / {_minutes(wait['p95'])}" for wait in waits),
                _minutes(max(wait["longest"] for wait in waits)),
            )
        )
    jobs = record["day"]["jobs"]
    sizes = (
        f"{kind}, {jobs[kind]['bytes'] / 1e9:.0f} GB, min"
        for kind in record["day"]["policies"]["leases, 1 slot"]["wait_seconds"]
    )
    return table(
        (
            "policy",
            "GPU empty while somebody waits",
            "starts without memory, a day",
            "jobs lost, a day",
            *sizes,
            "longest wait, min",
        ),
        rows,
    )


LEASE_TABLES: dict[str, Table] = {
    "lease-cost": measured("leases", _lease_cost),
    "lease-day": measured("leases", _lease_day),
}
"""Names that the page marks, and what makes each table."""
