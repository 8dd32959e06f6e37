"""Fixtures of the tests on a GPU."""

import os
from types import ModuleType

import pynvml
import pytest
from device import NoDeviceError, cupy_with_device

EMULATED = "EMU_HOME" in os.environ
"""True if tests/support/cuda emulates CUDA."""


def pytest_report_header() -> str:
    """Say which GPU the tests run on."""
    if EMULATED:
        options = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("EMU_")]
        return f"GPU: none, CUDA is emulated ({', '.join(options)})"
    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return f"GPU: {name}, driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError as error:
        return f"GPU: none ({error}); `make test-gpu` emulates one"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need the emulation unless CUDA is emulated."""
    if not EMULATED:
        for item in items:
            if item.get_closest_marker("emulated"):
                item.add_marker(pytest.mark.skip(reason="sets the emulated CUDA's variables"))


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    """CuPy with a device."""
    try:
        return cupy_with_device()
    except NoDeviceError as error:
        pytest.skip(str(error))
