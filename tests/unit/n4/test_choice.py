"""N4 chooses the faster device, as far as its sizes tell."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from n4_volumes import planned

from octane.layout.sections import Section
from octane.n4.choice import RATES, Load, choose, load_of

FLOAT = [np.dtype("float32")]
DEMO = (60, 120, 120)
BRAIN = (256, 1024, 769)
LARGE = (2000, 4000, 4000)


@pytest.mark.parametrize(
    ("shape", "cores", "start", "chosen"),
    [
        (DEMO, 1, RATES.gpu_start, "cpu"),
        (BRAIN, 16, RATES.gpu_start, "cpu"),
        (BRAIN, 2, RATES.gpu_start, "auto"),
        # The kernels are compiled first.
        (BRAIN, 2, 10.0, "cpu"),
        (LARGE, 2, 10.0, "auto"),
        (LARGE, 16, RATES.gpu_start, "auto"),
        # The copies take longer than so many cores compute.
        (LARGE, 64, RATES.gpu_start, "cpu"),
    ],
)
def test_the_faster_device_is_chosen(tmp_path, shape, cores, start, chosen):
    plan = planned(tmp_path, shape, "200GB", workers=cores, shrink_factor=4)
    load = load_of(plan, 1e-3, FLOAT)
    assert choose(load, cores, replace(RATES, gpu_start=start)).backend == chosen


HOURS = Load(iterations=200, fitted=1e13, divided=10**9, copied=10**10)


@pytest.mark.parametrize(
    ("load", "cores", "chosen"),
    [
        (HOURS, 4, "auto"),
        (HOURS, 10**6, "cpu"),
        (replace(HOURS, fitted=0.0), 4, "cpu"),
        (replace(HOURS, copied=10**16), 4, "cpu"),
        (replace(HOURS, iterations=10**10), 4, "cpu"),
    ],
)
def test_voxels_iterations_copies_and_cores_decide(load, cores, chosen):
    choice = choose(load, cores)
    assert choice.backend == chosen
    assert f"on {cores} core" in choice.reason


def test_the_reason_states_the_seconds_of_both_devices():
    rates = replace(RATES, fit=1e-9, division=0.0, gpu_start=2.0, gpu_iteration=0.0, gpu_fit=0.0)
    reason = choose(Load(1, 8e9, 1, 0), 2, rates).reason
    assert "to take 4.0 s on 2 cores, and 2.0 s on a GPU" in reason


SECTIONS = [Section(str(k), k, 20 * k, 20 * k + 20) for k in range(10)]


def test_all_fits_and_results_count(tmp_path):
    shape = (200, 60, 80)
    plan = partial(planned, tmp_path, shape, iterations=(30, 10), shrink_factor=(2, 2, 1))
    voxels = math.prod(shape)
    once = load_of(plan(), 0.0, FLOAT)
    assert once == Load(40, voxels / 4 * 40, voxels, voxels * (4 + 4))
    two_pass = plan(sections=SECTIONS, mode="two_pass")
    both = load_of(two_pass, 0.0, [np.dtype("uint16"), *FLOAT])
    assert both == Load(11 * 40, 2 * once.fitted, voxels, voxels * (4 + 2 + 4))


def test_levels_that_may_converge_are_expected_to_do_half_of_their_iterations(tmp_path):
    plan = planned(tmp_path, BRAIN)
    half, whole = (load_of(plan, threshold, FLOAT) for threshold in (1e-3, 0.0))
    assert half == replace(whole, iterations=whole.iterations / 2, fitted=whole.fitted / 2)
