import pytest

from octane.report.gpu_table import gpu_use
from octane.report.records import Record


def task(waited=0.0, backend="gpu", **more):
    outcomes = more.pop("outcomes", [("done", "GPU-1")])
    attempts = [{"outcome": outcome, "gpu": gpu} for outcome, gpu in outcomes]
    lease = {"backend": backend, "slot_wait_seconds": waited, "attempts": attempts}
    return Record.model_validate({"step": "n4", "figures": {"gpu": lease}, **more})


def test_waits_copies_and_tries_are_summed():
    use = gpu_use(
        {
            "n4": [
                task(30.0, bytes={"copy": 10}, seconds={"copy": 1.0}),
                task(90.0, outcomes=[("taken by another", "GPU-1"), ("done", "GPU-2")]),
            ]
        }
    )["n4"]
    assert (use.tasks, use.on_gpu, use.waited, use.longest) == (2, 2, 120.0, 90.0)
    assert use.failed == {"taken by another": 1}
    assert (use.copied, use.copy_seconds) == (10, pytest.approx(1))
    assert use.copies == []


def test_copies_of_tasks_are_added_up_by_direction():
    record = task()
    own = {"to_device": {"bytes": 4 * 10**9, "seconds": 0.5}}
    pipeline = {"tiles": 1, "workers": 1, "seconds": 1.0, "lane_seconds": {}, "transfers": own}
    record.figures["pipeline"] = {"RESAMPLE": pipeline}
    other = record.model_copy(deep=True)
    (copies,) = gpu_use({"resample": [record, other, task()]})["resample"].copies
    assert (copies.direction, copies.bytes, copies.rate) == ("to_device", 8 * 10**9, 8e9)


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


def test_a_wait_in_vain_is_told():
    waited = task(300.0, backend="cpu", outcomes=[("no GPU", None), ("done", None)])
    assert gpu_use({"n4": [waited]})["n4"].failed == {"no GPU": 1}
