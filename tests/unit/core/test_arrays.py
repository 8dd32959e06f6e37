import sys
from types import ModuleType

import numpy as np
import pytest

from octane.core import arrays
from octane.core.errors import OctaneError


class FakeArray(np.ndarray):
    """What namespace() takes for a CuPy array: its class comes from a module named cupy."""


FakeArray.__module__ = "cupy._core.core"


def fake_cupy():
    cupy = ModuleType("cupy")
    vars(cupy).update(asnumpy=np.asarray)
    return cupy


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails


def test_namespace_of_host_arrays_is_numpy_without_importing_cupy(no_cupy):
    assert arrays.namespace(np.zeros(2), 3.0) is np
    assert arrays.namespace() is np


def test_namespace_of_a_device_array(monkeypatch):
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = np.zeros(3).view(FakeArray)
    assert arrays.namespace(np.zeros(3), array) is cupy
    assert type(arrays.to_host(array)) in (np.ndarray, FakeArray)


def test_to_host_leaves_host_arrays_alone():
    array = np.zeros(3)
    assert arrays.to_host(array) is array


def test_a_step_of_the_cpu_refuses_a_gpu():
    for name in ("auto", "cpu"):
        arrays.require_cpu(name, "STITCH")
    with pytest.raises(OctaneError, match="STITCH runs on the CPU"):
        arrays.require_cpu("gpu", "STITCH")
