"""The profiler around the GPU steps: a stand-in for Nsight Systems shows what is run and kept."""

import pytest

NSYS = """#!/bin/bash
# What nsys does with these arguments: runs the command, and writes a file of the name given.
[[ $1 == profile ]] || exit 2
shift
while [[ $1 == --* ]]; do
    case $1 in --output=*) name=${1#--output=} ;; --trace=*) trace=$1 ;; esac
    shift
done
echo "$trace ${1##*/}" > "$name.nsys-rep"
exec env NVTX_INJECTION64_PATH=/nonexistent/injection.so "$@"
"""


@pytest.fixture
def nsys(tmp_path, environment):
    """A folder with the stand-in, put on the PATH."""
    folder = tmp_path / "nsight"
    folder.mkdir()
    command = folder / "nsys"
    command.write_text(NSYS, encoding="utf-8")
    command.chmod(0o755)
    return {"PATH": f"{folder}:{environment['PATH']}"}


def test_gpu_steps_are_profiled_and_their_files_published(tmp_path, nextflow, phantom, quick, nsys):
    profiles = [word.replace("test", "test,profile_gpu") for word in quick]
    run = nextflow(tmp_path, *profiles, "--input", phantom / "mosaics", env=nsys)
    assert run.code == 0, run.output
    found = sorted(run.outdir.glob("*/profiles/*.nsys-rep"))
    assert [path.name for path in found] == [
        "mosaics_n4.nsys-rep",
        "section_01_resample.nsys-rep",
        "section_02_resample.nsys-rep",
    ]
    assert found[0].read_text() == "--trace=cuda,nvtx,osrt n4.py\n"
