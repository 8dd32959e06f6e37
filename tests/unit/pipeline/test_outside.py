"""What a step does outside of its tile pipeline: named where it is the larger part."""

import json
import os
import time
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.config.params import N4Parameters, ReportParameters, StitchParameters
from octane.pipeline.outside import Outside, outside_of
from octane.steps.n4 import correct_bias
from octane.steps.report import write_report
from octane.steps.stitch import stitch_section

PARTS = ("into memory", "read", "shrink", "weights", "mask", "level", "fit", "project", "overlaps")

FITTED = Outside(
    "N4", 100.0, 15.0, {"shrink": 8.0, "fit": 71.0, "mask": 1.0}, {}, gpu=False, settings={}
)
LOADED = Outside(
    "STITCH",
    50.0,
    10.0,
    {"into memory": 32.0, "project": 4.0, "overlaps": 1.0},
    {"read": 60.0, "decode": 10.0, "compute": 5.0},
    gpu=False,
    settings={"refine": False},
)


def test_the_largest_part_is_named_with_what_changes_it():
    assert outside_of(FITTED) == (
        "N4: the fit took 71% of the step (the tiles 15%, reading the voxels that are fitted 8%, "
        "all else 5%); run it on a GPU (-profile gpu), or raise --n4_shrink_factor or lower "
        "--n4_iterations, which change the field."
    )
    assert outside_of(LOADED) == (
        "STITCH: reading the input into memory took 64% of the step (the tiles 20%, projecting the "
        "tiles 8%, all else 6%); the threads that read spent 80% of their time waiting for the "
        "input's files: keep the input on faster storage (-work-dir, where an earlier step wrote "
        "it)."
    )


def test_what_is_the_smaller_part_is_not_told():
    assert outside_of(replace(FITTED, pipeline=85.0, whole=170.0)) is None
    assert outside_of(replace(FITTED, whole=200.0)) is None
    assert outside_of(replace(FITTED, parts={}, pipeline=0.0, whole=0.0)) is None


@pytest.mark.parametrize(
    ("part", "settings", "remedy"),
    [
        ("read", {}, "give it as OME-Zarr"),
        ("mask", {"mask": "tissue"}, "--n4_mask"),
        ("mask", {"mask": "m.nii"}, "their time waiting for the input's files"),
        ("overlaps", {"refine": True}, "--stitch_refine"),
        ("overlaps", {"refine": False}, "more cpus do not help"),
        ("lease", {}, "--gpu_count"),
        ("to disk", {}, "--scratch_dir"),
        ("fit", {}, "-profile gpu"),
    ],
)
def test_each_part_has_its_remedy(part, settings, remedy):
    made = replace(LOADED, parts={part: 40.0}, settings=settings)
    assert remedy in str(outside_of(made))


def test_a_fit_on_a_gpu_is_not_sent_to_one():
    assert "-profile gpu" not in str(outside_of(replace(FITTED, gpu=True)))


def test_threads_that_decode_are_told_so():
    sentence = str(outside_of(replace(LOADED, readers={"read": 1.0, "decode": 9.0})))
    assert "90% of their time decoding: give the task more cpus, or choose --resample" in sentence


@given(st.lists(st.floats(0, 1e6), min_size=len(PARTS), max_size=len(PARTS)), st.floats(0, 1e6))
def test_any_seconds_make_a_sentence_or_none(seconds, pipeline):
    parts = dict(zip(PARTS, seconds, strict=True))
    made = replace(LOADED, parts=parts, pipeline=pipeline, whole=sum(seconds) + pipeline)
    sentence = outside_of(made)
    assert (sentence is not None) == (sum(seconds) > pipeline)
    assert sentence is None or ("nan" not in sentence and sentence.endswith("."))


@pytest.fixture
def reported(tmp_path, execution):
    """The page of a report on one step."""

    def make(metrics):
        record = tmp_path / f"{metrics.step}_metrics.json"
        preview = tmp_path / f"{metrics.step}_preview.npz"
        metrics.save(record, preview)
        page = tmp_path / "x_report.html"
        write_report(
            [record], [preview], page, ReportParameters(), subject="x", run=None,
            execution=execution,
        )  # fmt: skip
        told = json.loads(record.read_text())["figures"]["outside"]
        return told, unescape(page.read_text())

    return make


def test_a_fit_that_bounds_n4_is_named_in_the_log_and_in_the_report(
    rng, write_image, tmp_path, reading, execution, caplog, reported
):
    caplog.set_level("INFO", logger="octane")
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in (32, 48, 48)], indexing="ij")
    voxels = (np.exp(0.4 * x - 0.3 * y * z) * (500 + 20 * rng.random(x.shape))).astype(np.float32)
    source = write_image("v.ome.zarr", voxels, attributes={"kind": "volume", "step": "stack"})

    def correct(name, iterations):
        fixed = {"shrink_factor": 1, "convergence_threshold": 0.0, "mask": None}
        parameters = N4Parameters.model_validate({**fixed, "iterations": iterations})
        return correct_bias(source, tmp_path / name, parameters, reading, execution)

    correct("first.ome.zarr", (1,))  # compiles
    caplog.clear()
    metrics = correct("n4.ome.zarr", (1000, 1000))
    told, page = reported(metrics)
    assert told["bound"].startswith("N4: the fit took ")
    assert "--n4_iterations" in told["bound"]
    assert told["bound"] in caplog.messages
    assert told["bound"] in page
    assert told["part_seconds"]["fit"] > told["pipeline_seconds"]
    assert sum(told["part_seconds"].values()) + told["pipeline_seconds"] <= told["seconds"]


def test_a_stitch_whose_storage_is_slow_is_told_so_in_the_log_and_in_the_report(
    rng, write_mosaic, tmp_path, reading, execution, caplog, reported, monkeypatch
):
    caplog.set_level("INFO", logger="octane")
    source = write_mosaic("a.zarr", rng.random((8, 96, 96), np.float32), (8, 32, 32))
    read = os.preadv

    def slowly(descriptor, buffers, offset):
        time.sleep(0.1)
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", slowly)
    parameters = StitchParameters(overlap=(0.25, 0.25))
    metrics = stitch_section(source, tmp_path / "s.ome.zarr", parameters, reading, execution)
    assert metrics.figures["kept_in_memory"]
    told, page = reported(metrics)
    assert told["bound"].startswith("STITCH: reading the input into memory took ")
    assert "of their time waiting for the input's files: keep the input on faster" in told["bound"]
    assert told["bound"] in caplog.messages
    assert told["bound"] in page
    assert told["reader_seconds"]["read"] >= 9 * 0.1
