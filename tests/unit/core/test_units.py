"""Lengths as users read them; sizes of memory are tested with the parameters."""

import pytest
from refusals import refused

from octane.core.units import format_lengths, plain_number


@pytest.mark.parametrize(
    ("micrometres", "words"),
    [
        ((3.5, 4, 4), "3.5 x 4 x 4 µm"),
        ((168.04, 1234.5, 1e4), "0.168 x 1.23 x 10 mm"),
        ((999.9,), "1000 µm"),
        ((1e6, 5e5), "1 x 0.5 m"),
        ((0.01,), "10 nm"),
        ((1e-5,), "0.01 nm"),
    ],
)
def test_lengths_have_the_unit_of_the_largest(micrometres, words):
    assert format_lengths(micrometres) == words


@pytest.mark.parametrize("text", ["1_000", "١٢", "1 000", "", "x"])
def test_only_plain_digits_are_numbers(text):
    with refused(error=ValueError):
        plain_number(text)
    assert plain_number(" 1e3 ") == 1000
