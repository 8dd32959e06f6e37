"""Errors: what a terminal would not show is escaped."""

import pytest

from octane.core.errors import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("r0_c0\udcff.tif", r"r0_c0\udcff.tif"),
        ("\u202egpj.tif", r"\u202egpj.tif"),
        ("5\xa0µm\tÅ 脳\n", "5\xa0µm\tÅ 脳\n"),
    ],
)
def test_hidden_signs_are_shown(text, shown):
    assert visible(text) == shown
