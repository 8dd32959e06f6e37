"""Expected errors, known by the files, flags and values that they name, not by their prose."""

import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from octane.core.errors import OctaneError


@contextmanager
def refused(
    *names: object, error: type[Exception] = OctaneError
) -> Generator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose sentence is one line and names each of ``names``."""
    with pytest.raises(error) as caught:
        yield caught
    sentence = str(caught.value)
    assert "\n" not in sentence, sentence
    # A number is not a part of another one.
    patterns = {
        name: r"(?<!\d)" * name[:1].isdigit() + re.escape(name) + r"(?!\d)" * name[-1:].isdigit()
        for name in map(str, names)
    }
    missing = [name for name, pattern in patterns.items() if not re.search(pattern, sentence)]
    assert missing == [], sentence
