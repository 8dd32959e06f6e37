"""The goals of resampling: what is taken from the benchmarks' records, and what is said of it."""

import json

import pytest
from _resample_goals import Goal, goals
from _resample_tables import RESAMPLE_TABLES


def program(seconds):
    return {"seconds": seconds, "command_seconds": seconds + 1, "peak_bytes": 3e8, "runs": []}


@pytest.fixture
def results(tmp_path):
    def write(part, record):
        (tmp_path / f"resample_{part}.json").write_text(json.dumps(record), encoding="utf-8")

    write(
        "end_to_end",
        {
            "cases": [
                {
                    "store": "zstd",
                    "tile": [256, 256, 256],
                    "tiles": 16,
                    "programs": {
                        "octane": program(1.0),
                        "linumpy": program(12.0),
                        "dask-image": program(6.0),
                        "tensorstore": program(1.5),
                    },
                    "stages": {
                        "seconds": {"read": 0.8, "compute": 0.1, "write": 0.1, "total": 0.9},
                        "total_over_sum": 0.9,
                        "total_over_read": 1.125,
                    },
                },
                {
                    "store": "uncompressed",
                    "tile": [256, 256, 256],
                    "tiles": 16,
                    "programs": {"octane": program(1.0), "tensorstore": program(1.25)},
                    "stages": {
                        "seconds": {"read": 0.2, "compute": 0.2, "write": 0.1, "total": 0.4},
                        "total_over_sum": 0.8,
                        "total_over_read": 2.0,
                    },
                },
            ]
        },
    )

    def memory(tiles, workers, peak):
        return {
            "tile": [256, 256, 256],
            "tiles": tiles,
            "workers": workers,
            "bytes": tiles * 67e6,
            "peak_bytes": peak,
            "predicted_bytes": 300e6,
        }

    write(
        "memory",
        {"cases": [memory(4, 1, 240e6), memory(4, 2, 270e6), memory(36, 2, 297e6)]},
    )
    return tmp_path


def named(found, start):
    (goal,) = (goal for goal in found if goal.name.startswith(start))
    return goal


def test_a_goal_holds_only_where_every_case_reaches_it():
    reached = Goal("ratio", (5.0, 6.0), 5, least=True, form="{:.0f}")
    missed = Goal("ratio", (4.0, 3.0), 5, least=True, form="{:.0f}")
    partly = Goal("ratio", (1.0, 1.3, 1.1), 1.2, least=False, form="{:.1f}")
    assert (reached.verdict, reached.range, reached.wanted) == ("yes", "5 to 6", ">= 5")
    assert missed.verdict == "**no**"
    assert (partly.verdict, partly.range, partly.wanted) == (
        "in 2 of 3 cases",
        "1.0 to 1.3",
        "<= 1.2",
    )


def test_without_records_nothing_is_said_to_hold(tmp_path):
    assert {(goal.range, goal.verdict) for goal in goals(tmp_path)} == {("not measured", "")}


def test_programs_are_compared_where_they_were_measured(results):
    found = goals(results)
    assert named(found, "end to end against linumpy").measured == (12.0,)
    assert named(found, "end to end against the fastest Gaussian").measured == (6.0,)
    assert named(found, "end to end against tensorstore").measured == (1.5, 1.25)
    assert named(found, "end to end over the sum").verdict == "yes"
    assert named(found, "end to end over reading").verdict == "in 1 of 2 cases"


def test_memory_is_flat_by_the_same_workers_and_a_worker_is_a_difference(results):
    found = goals(results)
    assert named(found, "peak memory, most tiles").measured == (297 / 270,)
    assert named(found, "peak memory over").measured == pytest.approx((0.2, 0.1, 0.01))
    assert named(found, "memory of one worker more, MB, tiles of 67").measured == (30.0,)
    assert named(found, "memory of one worker more, MB, tiles of 419").measured == ()


def test_the_tables_hold_every_program_and_mosaic_that_was_measured(results):
    made = RESAMPLE_TABLES["resample-end-to-end"](results)
    assert "| zstd, 16 tiles of 256³ | linumpy's loop | 12.00 | 13.00 | 300 | 12.0 |" in made
    assert made.count("uncompressed, 16 tiles of 256³") == 2
    assert "| 0.800 | 0.100 | 0.100 | 1.000 | 0.900 | 0.90 | 1.12 |" in RESAMPLE_TABLES[
        "resample-stages"
    ](results)
    assert "| 256³ | 36 | 2412 | 2 | 300 | 297 | 0.99 |" in RESAMPLE_TABLES["resample-memory"](
        results
    )


def test_a_gpu_gains_no_more_than_the_kernel_takes(results):
    assert RESAMPLE_TABLES["resample-gpu"](results) == "Not measured yet.\n"
    (results / "resample_read.json").write_text(
        json.dumps(
            {
                "tile": [256, 256, 256],
                "cases": [{"store": "zstd", "ms_per_tile": {"octane": {"1": 80.0, "2": 45.0}}}],
            }
        )
    )
    (results / "resample_kernel.json").write_text(
        json.dumps(
            {
                "cases": [
                    {
                        "tile": [256, 256, 256],
                        "methods": {
                            "octane": {"seconds": 0.01, "error": 2e-7, "octane_times_faster": 1.0},
                            "zoom": {"seconds": 0.6, "error": 0.4, "octane_times_faster": 60.0},
                        },
                    }
                ]
            }
        )
    )
    assert "| zstd | 80 | 10.0 | 1.12 |" in RESAMPLE_TABLES["resample-gpu"](results)
