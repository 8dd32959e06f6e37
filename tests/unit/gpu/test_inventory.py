"""GPUs that CUDA_VISIBLE_DEVICES shows, and simulated ones."""

import pytest
from refusals import refused

from octane.gpu.inventory import (
    VARIABLE,
    Gpu,
    GpusUnavailableError,
    named,
    simulated_gpus,
    simulated_uuid,
    visible,
)

ONE = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
TWO = "GPU-8932abcd-0000-4106-c12f-20bd9faed9f6"
SPLIT = "GPU-77777777-0000-4106-c12f-20bd9faed9f6"
FIRST = "MIG-11111111-605a-5c3d-98f6-9a17c8a9d4c1"
SECOND = "MIG-22222222-605a-5c3d-98f6-9a17c8a9d4c1"
OLD = f"MIG-{SPLIT}/2/0"
GPUS = (
    Gpu(0, ONE, "A40", 48, 48),
    Gpu(1, TWO, "A40", 48, 48),
    Gpu(2, FIRST, "A100 MIG 3g.20gb", 20, 20, parent=SPLIT),
    Gpu(2, SECOND, "A100 MIG 3g.20gb", 20, 20, parent=SPLIT),
    Gpu(2, OLD, "A100 MIG 1g.5gb", 5, 5, parent=SPLIT),
)


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, [gpu.uuid for gpu in GPUS]),
        *((none, []) for none in ("", ",0", "-1", "²", "NoDevFiles", "void")),
        ("0", [ONE]),
        ("1,0", [TWO, ONE]),
        (" 1 , 0 ", [TWO, ONE]),
        ("0,0", [ONE]),
        ("0,-1,1", [ONE]),
        ("9,0", []),
        (ONE, [ONE]),
        (f"{TWO},0", [TWO, ONE]),
        ("GPU-8932f", [ONE]),
        ("GPU-8932", []),  # matches two
        ("GPU-", []),
        (SECOND, [SECOND]),
        ("MIG-22", [SECOND]),
        ("MIG-", []),
        (OLD, [OLD]),
        ("2", [FIRST]),  # the instance that CUDA uses of a split GPU
        (SPLIT, [FIRST]),
        (f"{FIRST},junk,0", [FIRST]),
    ],
)
def test_the_setting_is_read_as_cuda_reads_it(setting, uuids):
    assert [gpu.uuid for gpu in visible(GPUS, setting)] == uuids


def test_a_mig_instance_is_named_with_its_uuid():
    assert named(GPUS[1]) == "GPU 1"
    assert named(GPUS[2]) == f"GPU 2 ({FIRST})"


def test_a_number_and_a_size_are_idle_gpus():
    first, second = simulated_gpus("2x40GB")
    assert (first.total, first.free, first.utilisation, first.processes) == (40e9, 40e9, 0, ())
    assert (first.uuid, second.uuid) == (simulated_uuid(0), simulated_uuid(1))


@pytest.mark.parametrize("description", ["two", "2x", "2xmany", "/nowhere.json", "x40GB"])
def test_an_invalid_description_is_refused(description):
    with refused(VARIABLE, f"'{description}'", error=GpusUnavailableError):
        simulated_gpus(description)
