"""Tables of the report: the use of GPUs by step."""

import pytest

from octane.core.records import Record
from octane.report.tables import gpu_use


def task(waited=0.0, backend="gpu", **more):
    outcomes = more.pop("outcomes", [("done", "GPU-1")])
    attempts = [{"outcome": outcome, "gpu": gpu} for outcome, gpu in outcomes]
    lease = {"backend": backend, "slot_wait_seconds": waited, "attempts": attempts}
    figures = {"gpu": lease, "pipeline": {"N4": more.pop("pipeline", {})}}
    return Record.model_validate({"step": "n4", "figures": figures, **more})


def copies(**ways):
    """A pipeline that copied bytes in seconds."""
    return {"transfers": {way: {"bytes": n, "seconds": s} for way, (n, s) in ways.items()}}


def test_waits_rates_and_tries_are_summed():
    records = [
        task(30.0, pipeline=copies(to_device=(4e9, 1.0), to_host=(1e9, 0.5))),
        task(
            90.0,
            outcomes=[("taken by another", "GPU-1"), ("done", "GPU-2")],
            pipeline=copies(to_device=(8e9, 1.0), to_host=(0, 0.0)),
        ),
    ]
    use = gpu_use({"n4": records})["n4"]
    assert (use.tasks, use.on_gpu, use.waited, use.longest) == (2, 2, 120.0, 90.0)
    assert use.failed == {"taken by another": 1}
    assert use.rates == pytest.approx({"to_device": 6.0, "to_host": 2.0})
    # Nothing was copied, or none of it was timed.
    assert gpu_use({"n4": [task(pipeline=copies(to_host=(0, 0.0)))]})["n4"].rates == {}


@pytest.mark.parametrize(
    "record",
    [
        Record(step="stack"),
        task(backend="cpu", outcomes=[("done", None)]),
        # A machine without a GPU.
        task(backend="cpu", outcomes=[("no GPU", None), ("done", None)]),
    ],
    ids=["no lease", "cpu", "no gpu"],
)
def test_steps_that_had_nothing_to_do_with_a_gpu_are_left_out(record):
    assert gpu_use({"step": [record]}) == {}


def test_a_wait_in_vain_is_named():
    waited = task(300.0, backend="cpu", outcomes=[("no GPU", None), ("done", None)])
    assert gpu_use({"n4": [waited]})["n4"].failed == {"no GPU": 1}
