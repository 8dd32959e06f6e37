"""Records of tasks: only the record of the step that is meant is read as a reference."""

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.core.metrics import Metrics
from octane.core.records import read_reference
from octane.processes.stitch.record import StitchFigures

FIGURES = {"tiles": 4, "shape": [2, 3, 4], "positions": {"0,0": [0.1, -0.0]}}


@pytest.fixture
def record(tmp_path):
    """Write the record of a step."""

    def write(step, figures):
        metrics = Metrics(step)
        metrics.figures = figures
        metrics.save(tmp_path / "record.json", None)
        return tmp_path / "record.json"

    return write


def test_a_reference_is_read_as_it_was_written(record):
    assert read_reference(record("stitch", FIGURES), "stitch", StitchFigures) == (
        StitchFigures.model_validate(FIGURES)
    )


@pytest.mark.parametrize(
    ("step", "figures", "sentence"),
    [
        ("stack", FIGURES, r"is a record of STACK; give --reference the record of STITCH of the"),
        ("stitch", {"tiles": 4}, r"lacks figures of STITCH; run STITCH of the reference channel"),
    ],
)
def test_another_record_is_no_reference(record, step, figures, sentence):
    with refused("record.json", sentence, error=InputError):
        read_reference(record(step, figures), "stitch", StitchFigures)


def test_a_record_that_does_not_exist_is_named(tmp_path):
    with refused("other.json", error=InputError):
        read_reference(tmp_path / "other.json", "stitch", StitchFigures)


@pytest.mark.parametrize("content", ["", "[]", '{"figures": 3}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with refused("other.json", error=InputError):
        read_reference(path, "stitch", StitchFigures)
    with refused(tmp_path, error=InputError):
        read_reference(tmp_path, "stitch", StitchFigures)
