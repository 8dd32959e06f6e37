"""CUDA kernels: their source with macros, and how many blocks of them run at once."""

import pytest

from octane.gpu.kernels import blocks_at_once, source_with


def test_macros_come_before_the_source(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text("int f() { return THREADS; }\n")
    expected = "#define THREADS 256\n#define CLIPPED \nint f() { return THREADS; }\n"
    assert source_with(path, THREADS=256, CLIPPED="") == expected


def gpu(multiprocessors, threads, shared):
    return {
        "MultiProcessorCount": multiprocessors,
        "MaxThreadsPerMultiProcessor": threads,
        "MaxRegistersPerMultiprocessor": 1 << 16,
        "MaxSharedMemoryPerMultiprocessor": shared,
    }


H100, T4 = gpu(132, 2048, 228 << 10), gpu(40, 1024, 64 << 10)


# By hand, from the limits in the CUDA C++ Programming Guide.
@pytest.mark.parametrize(
    ("device", "registers", "shared", "threads", "of_one"),
    [
        (H100, 32, 0, 256, 8),  # as many threads as a multiprocessor holds
        (H100, 40, 8 << 10, 256, 6),  # limited by registers
        (H100, 41, 8 << 10, 256, 5),  # which are allocated in steps
        (H100, 56, 32 << 10, 1024, 1),
        (H100, 32, 48 << 10, 256, 4),  # limited by shared memory
        (T4, 45, 8 << 10, 256, 4),
        (T4, 32, 32 << 10, 256, 1),
    ],
)
def test_the_blocks_that_run_at_once_are_those_of_the_tightest_limit(
    device, registers, shared, threads, of_one
):
    kernel = {"num_regs": registers, "shared_size_bytes": shared}
    expected = of_one * device["MultiProcessorCount"]
    assert blocks_at_once(device, kernel, threads) == expected
