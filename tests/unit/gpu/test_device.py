"""What is known of a device without CuPy; with it, see tests/gpu."""

import random

from octane.gpu import device as gpu_device
from octane.gpu.device import CupyDevice


def test_whether_cupy_is_there_is_told_without_loading_it(monkeypatch):
    monkeypatch.setattr(gpu_device.importlib.util, "find_spec", lambda name: None)
    assert str(CupyDevice.missing()).startswith("CuPy is not installed; install CuPy 13")
    monkeypatch.setattr(gpu_device.importlib.util, "find_spec", lambda name: random)
    assert CupyDevice.missing() is None
