"""What bounds a step: the sentence names the largest share, and a remedy that fits it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.bounds import DOING, IDLE, OTHER, STAGES, Spent, bound_of, gap_of

STEPS = ["RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID 50 um"]


def spent(label: str = "RESAMPLE", **changes: float) -> Spent:
    seconds = dict.fromkeys((*STAGES, OTHER, IDLE), 1.0)
    gpu = bool(changes.pop("gpu", False))
    cpu = changes.pop("cpu", None)
    seconds.update(changes)
    total = sum(seconds.values())
    return Spent(
        label,
        seconds,
        total if cpu is None else cpu,
        wall=total / 4,
        tiles=100,
        workers=4,
        read_bytes=500_000_000,
        written_bytes=100_000_000,
        gpu=gpu,
        codec="zstd",
    )


def told(label: str, stage: str, **facts: object) -> str:
    """What is told of a step that one stage bounds."""
    return bound_of(replace(spent(label, **{stage: 20.0}), **facts))


@pytest.mark.parametrize(
    ("stage", "remedy"),
    [
        ("read", "faster storage"),
        ("decode", "blosc-lz4"),
        ("copy", "--pinned"),
        ("compute", "a GPU"),
        ("encode", "faster codec"),
        ("write", "--scratch_dir"),
        (OTHER, "larger tiles"),
        (IDLE, "100 tiles are too few for 4 workers"),
    ],
)
def test_the_largest_share_is_named_with_its_remedy(stage, remedy):
    sentence = told("RESAMPLE", stage)
    assert sentence.startswith(f"RESAMPLE: {DOING[stage]} took 74% of the workers' time")
    assert remedy in sentence
    assert sentence.endswith(".")


def test_a_gpu_that_limits_is_not_helped_by_cores():
    assert "the GPU is what limits" in bound_of(spent(compute=20.0, gpu=True))


def test_workers_without_cores_are_told_apart_from_work():
    assert "4 workers had 0.7 cores" in bound_of(spent(compute=20.0, cpu=5.0))
    # Waiting for files takes no core.
    assert "faster storage" in bound_of(spent(read=20.0, cpu=0.5))


def test_having_no_tile_is_the_bound_only_where_it_is_most_of_all():
    assert spent(idle=4.0, read=3.0).stage == "read"
    assert spent(idle=20.0, read=3.0).stage == IDLE


@pytest.mark.parametrize(
    ("tiles", "workers", "remedy"),
    [
        (4, 4, "4 tiles are too few for 4 workers: fewer cpus do."),
        (1, 1, "what comes before and after the tiles is longer: more cpus do not help."),
    ],
)
def test_workers_without_tiles_are_told(tiles, workers, remedy):
    seconds = dict.fromkeys((*STAGES, OTHER), 0.01) | {IDLE: 5.0}
    assert bound_of(Spent("N4", seconds, 1.0, 5.0, tiles, workers)).endswith(remedy)


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


@pytest.mark.parametrize("stage", ["read", "write"])
def test_no_rate_is_told_of_bytes_that_were_not_counted(stage):
    assert "MB/s" not in told("STITCH", stage, read_bytes=0, written_bytes=0)


@pytest.mark.parametrize("label", STEPS)
def test_a_gpu_is_advised_to_the_steps_that_take_one(label):
    takes = label in ("RESAMPLE", "N4")
    assert ("-profile gpu" in told(label, "compute")) is takes
    assert "give the task more cpus" in told(label, "compute")


@pytest.mark.parametrize("label", STEPS)
def test_prefetch_is_advised_where_the_step_looks_ahead(label):
    assert "--prefetch" not in told(label, "read")
    assert "faster storage" in told(label, "read")
    assert "or raise --prefetch" in told(label, "read", looks_ahead=True)


@pytest.mark.parametrize("label", STEPS)
def test_storage_that_the_run_itself_fills_is_named(label):
    assert ("-work-dir" in told(label, "read")) is (label != "RESAMPLE")


@pytest.mark.parametrize(
    ("label", "remedy"),
    [
        ("RESAMPLE", "store the input in blosc-lz4"),
        ("STITCH", "--resample_codec none"),
        ("STACK", "--stitch_codec none"),
        ("N4", "where the run begins with the volume"),
        ("PYRAMID 50 um", "--n4_codec and --pyramid_codec blosc-lz4"),
    ],
)
def test_what_is_decoded_faster_is_what_the_step_is_given(label, remedy):
    assert "; give the task more cpus, or " in told(label, "decode")
    assert remedy in told(label, "decode")


@pytest.mark.parametrize(
    ("codec", "faster", "smaller"),
    [
        ("zstd", "blosc-lz4, or none", None),
        ("blosc-lz4", "(none)", "the codec zstd"),
        ("none", None, "the codec zstd"),
        (None, None, None),
    ],
)
def test_another_codec_is_advised_where_there_is_a_better_one(codec, faster, smaller):
    encoding, writing = (told("STACK", stage, codec=codec) for stage in ("encode", "write"))
    assert "more cpus" in encoding
    assert ("codec" in encoding) is (faster is not None)
    assert (faster or "") in encoding
    assert "--scratch_dir, -work-dir" in writing
    assert ("codec" in writing) is (smaller is not None)
    assert (smaller or "") in writing


@pytest.mark.parametrize("stage", ["decode", "compute", "encode"])
@pytest.mark.parametrize("label", STEPS)
def test_more_cpus_are_not_advised_where_each_tile_has_its_worker(label, stage):
    sentence = told(label, stage, tiles=4, codec=None)
    assert "give the task more cpus" not in sentence
    if label.startswith("PYRAMID") and stage != "decode":
        assert sentence.endswith("; each tile had a worker of its own: more cpus do not help.")
    # Of several tasks each has its own.
    assert "give the task more cpus" not in told(label, stage, tiles=12, tasks=3)


def test_tiles_of_several_tasks_are_told_as_such():
    assert told("STITCH", IDLE, tiles=12, tasks=3).endswith(
        "; 12 tiles of 3 tasks are too few for 4 workers each: fewer cpus do."
    )


@given(st.lists(st.floats(0, 1e6), min_size=len(STAGES) + 2, max_size=len(STAGES) + 2))
def test_any_seconds_make_a_sentence(values):
    sentence = bound_of(
        Spent("N4", dict(zip((*STAGES, OTHER, IDLE), values, strict=True)), 1.0, 1.0, 1, 1)
    )
    assert sentence.startswith("N4: ")
    assert "nan" not in sentence
    gaps = dict(zip((*STAGES, OTHER, IDLE), values, strict=True))
    assert "nan" not in gap_of(Spent("N4", {}, 1.0, 1.0, 1, 1, gaps=gaps))


def test_runs_made_slow_in_one_place_are_told_so(tmp_path, monkeypatch):
    pytest.importorskip("nvtx", reason="nvtx has no wheel for this platform")
    from _resample_stores import mosaic
    from profiling import bounds

    monkeypatch.setenv("OCTANE_BENCH_DIR", str(tmp_path))
    with mosaic(tmp_path, "zstd", (32, 96, 96), (2, 4)) as source:
        found = bounds(source)
    assert {made: of["named"] for made, of in found.items()} == {  # ty: ignore[not-subscriptable]
        "read": "read",
        "compute": "compute",
        "write": "write",
    }
