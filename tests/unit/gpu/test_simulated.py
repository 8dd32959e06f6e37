"""Simulated GPUs: their description, which is read at every look."""

import json

import pytest

from octane.gpu.inventory import GpuProcess, GpusUnavailableError
from octane.gpu.simulated import VARIABLE, SimulatedGpus, simulated_uuid


def test_a_number_and_a_size_are_idle_gpus():
    first, second = SimulatedGpus("2x40GB").read()
    assert (first.total, first.free, first.utilisation, first.processes) == (40e9, 40e9, 0, ())
    assert (first.uuid, second.uuid) == (simulated_uuid(0), simulated_uuid(1))


def test_a_file_gives_a_load_that_can_change(tmp_path):
    path = tmp_path / "gpus.json"
    source = SimulatedGpus(str(path))
    path.write_text(json.dumps([{"total": 40, "free": 10, "processes": [[7, 30]]}]))
    (gpu,) = source.read()
    assert (gpu.free, gpu.processes) == (10, (GpuProcess(7, 30),))
    path.write_text(json.dumps([{"total": 40, "fault": "lost"}]))
    assert source.read()[0].fault == "lost"


@pytest.mark.parametrize("description", ["two", "2x", "2xmany", "/nowhere.json", "x40GB"])
def test_what_cannot_be_understood_is_said(description):
    with pytest.raises(GpusUnavailableError, match=VARIABLE):
        SimulatedGpus(description).read()


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', '[{"free": 1}]'])
def test_a_file_that_is_no_list_of_gpus_is_said(tmp_path, content):
    path = tmp_path / "gpus.json"
    path.write_text(content)
    with pytest.raises(GpusUnavailableError, match=VARIABLE):
        SimulatedGpus(str(path)).read()
