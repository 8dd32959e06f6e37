"""The bound of a step in the report, and its remedy."""

import pytest

from octane.core.timing import OTHER
from octane.report.bounds import bound_of


@pytest.mark.parametrize(
    ("stage", "gpu", "by", "remedy"),
    [
        ("compute", False, "cores", "more cpus"),
        ("compute", True, "GPU", "--gpu_count"),
        ("fit", False, "cores", "-profile gpu"),
        ("fit", True, "GPU", "--n4_iterations"),
        ("shrink", False, "input", "keep the input on faster storage"),
        ("overlaps", False, "core", "more cpus do not help"),
        (OTHER, False, "Python", "larger tiles"),
    ],
)
def test_the_stage_that_took_most_has_one_word_and_one_remedy(stage, gpu, by, remedy):
    assert bound_of({stage: 0.0}, gpu=gpu) is None
    found = bound_of({"load": 1.0, stage: 3.0, "level": 2.0}, gpu=gpu)
    assert found is not None
    assert (found.stage, found.by) == (stage, by)
    assert remedy in found.remedy
