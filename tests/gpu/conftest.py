"""What the tests on a GPU share."""

import pytest
from device import NoDeviceError, cupy_with_device


@pytest.fixture(scope="session")
def cupy():
    """CuPy with a device."""
    try:
        return cupy_with_device()
    except NoDeviceError as error:
        pytest.skip(str(error))
