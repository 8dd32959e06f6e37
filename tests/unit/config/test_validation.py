"""What pydantic found wrong, in words for the person who gave the parameters."""

import pytest
from pydantic import ValidationError

from octane.config.params import N4Parameters, WorkflowParameters
from octane.config.validation import spelled


def lines(model, values, style="flag"):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return spelled(caught.value, model, style)


@pytest.mark.parametrize(
    ("style", "written"),
    [("flag", "--shrink-factor"), ("parameter", "--shrink_factor")],
)
def test_a_parameter_is_named_as_it_was_written(style, written):
    (line,) = lines(N4Parameters, {"shrink_factor": 0}, style)
    assert line.startswith(f"{written} is 0: input should be greater than or equal to 1")
    (line,) = lines(N4Parameters, {"shrink_facto": 2}, style)
    assert line == f"Unknown parameter {line.split()[2]} did you mean {written}?"


def test_equal_problems_of_a_lists_members_are_one_line():
    assert len(lines(N4Parameters, {"iterations": [-1, -1, -1]})) == 1


def test_our_own_words_are_kept():
    (line,) = lines(WorkflowParameters, {"skip_n4": "no"}, "parameter")
    assert line == "--skip_n4 is 'no': write true or false."
