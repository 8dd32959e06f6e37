"""What the tests on a GPU share."""

import pytest

from octane import backend
from octane.errors import OctaneError


@pytest.fixture(scope="session")
def cupy():
    """CuPy with a device."""
    try:
        return backend.select("gpu")
    except OctaneError as error:
        pytest.skip(str(error))
