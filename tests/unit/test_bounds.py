"""What bounds a step: the sentence names the largest share, and a remedy that fits it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.bounds import DOING, IDLE, OTHER, STAGES, Spent, bound_of


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


def test_rates_are_those_of_the_wall():
    assert f"{500 / 6.75:.0f} MB/s came in" in bound_of(spent(read=20.0))


@given(st.lists(st.floats(0, 1e6), min_size=len(STAGES) + 2, max_size=len(STAGES) + 2))
def test_any_seconds_make_a_sentence(values):
    told = bound_of(
        Spent("N4", dict(zip((*STAGES, OTHER, IDLE), values, strict=True)), 1.0, 1.0, 1, 1)
    )
    assert told.startswith("N4: ")
    assert "nan" not in told


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
