"""What bounds a step: the sentence names the largest share, and a remedy that fits it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.bounds import DOING, IDLE, OTHER, STAGES, Spent, bound_of, gap_of


def spent(**changes: float) -> Spent:
    seconds = dict.fromkeys((*STAGES, OTHER, IDLE), 1.0)
    gpu = bool(changes.pop("gpu", False))
    cpu = changes.pop("cpu", None)
    seconds.update(changes)
    total = sum(seconds.values())
    return Spent(
        "RESAMPLE",
        seconds,
        total if cpu is None else cpu,
        wall=total / 4,
        tiles=100,
        workers=4,
        read_bytes=500_000_000,
        written_bytes=100_000_000,
        gpu=gpu,
    )


@pytest.mark.parametrize(
    ("stage", "remedy"),
    [
        ("read", "faster storage"),
        ("decode", "blosc-lz4"),
        ("copy", "--pinned"),
        ("compute", "a GPU"),
        ("encode", "faster codec"),
        ("write", "--scratch_dir"),
        (OTHER, "larger ones"),
        (IDLE, "100 tiles are too few for 4 workers"),
    ],
)
def test_the_largest_share_is_named_with_its_remedy(stage, remedy):
    told = bound_of(spent(**{stage: 20.0}))
    assert told.startswith(f"RESAMPLE: {DOING[stage]} took 74% of the workers' time")
    assert remedy in told
    assert told.endswith(".")


def test_a_gpu_that_limits_is_not_helped_by_cores():
    told = bound_of(spent(compute=20.0, gpu=True))
    assert "the GPU is what limits" in told


def test_workers_without_cores_are_told_apart_from_work():
    told = bound_of(spent(compute=20.0, cpu=5.0))
    assert "4 workers had 0.7 cores" in told
    # Waiting for files takes no core.
    assert "faster storage" in bound_of(spent(read=20.0, cpu=0.5))


def test_having_no_tile_is_the_bound_only_where_it_is_most_of_all():
    assert spent(idle=4.0, read=3.0).stage == "read"
    assert spent(idle=20.0, read=3.0).stage == IDLE


@pytest.mark.parametrize(
    ("tiles", "workers", "told"),
    [
        (4, 4, "4 tiles are too few for 4 workers: fewer cpus do."),
        (1, 1, "what comes before and after the tiles is longer: more cpus do not help."),
    ],
)
def test_workers_without_tiles_are_told(tiles, workers, told):
    seconds = dict.fromkeys((*STAGES, OTHER), 0.01) | {IDLE: 5.0}
    assert bound_of(Spent("N4", seconds, 1.0, 5.0, tiles, workers)).endswith(told)


def test_the_time_without_computing_is_told_with_what_was_done_instead():
    gaps = {"decode": 1.5, "read": 0.9, IDLE: 0.54, "copy": 0.06}
    some = replace(spent(), gaps=gaps)
    assert gap_of(some) == (
        f"RESAMPLE: for {3.0 / some.wall:.0%} of the time no worker computed; what they did "
        "instead: decoding 50%, waiting for the input's files 30%, having no tile 18%."
    )
    assert "no worker waited for the GPU to compute; " in gap_of(replace(some, gpu=True))
    assert gap_of(replace(some, gaps={"read": 0.0})).endswith("0% of the time no worker computed.")


def test_rates_are_those_of_the_wall():
    assert f"{500 / 6.75:.0f} MB/s came in" in bound_of(spent(read=20.0))


@given(st.lists(st.floats(0, 1e6), min_size=len(STAGES) + 2, max_size=len(STAGES) + 2))
def test_any_seconds_make_a_sentence(values):
    told = bound_of(
        Spent("N4", dict(zip((*STAGES, OTHER, IDLE), values, strict=True)), 1.0, 1.0, 1, 1)
    )
    assert told.startswith("N4: ")
    assert "nan" not in told
    gaps = dict(zip((*STAGES, OTHER, IDLE), values, strict=True))
    assert "nan" not in gap_of(Spent("N4", {}, 1.0, 1.0, 1, 1, gaps=gaps))


def test_runs_made_slow_in_one_place_are_told_so(tmp_path, monkeypatch):
    pytest.importorskip("nvtx", reason="nvtx has no wheel for this platform")
    from _resample_stores import mosaic
    from profiling import bounds

    monkeypatch.setenv("OCTANE_BENCH_DIR", str(tmp_path))
    with mosaic(tmp_path, "zstd", (32, 96, 96), (2, 4)) as source:
        found = bounds(source)
    assert {made: told["named"] for made, told in found.items()} == {  # ty: ignore[not-subscriptable]
        "read": "read",
        "compute": "compute",
        "write": "write",
    }
