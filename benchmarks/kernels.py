"""The CUDA kernels without a GPU: registers, spills and instructions as compiled; N4's atomics.

Each part is stored in benchmarks/results/kernels.json. ``--quick`` compiles for one generation and
writes to the scratch folder instead. ``--against FOLDER`` compares with another checkout's kernels.

The part ``code`` needs nvdisasm (wheel nvidia-cuda-nvdisasm), and exits with 3 without it. It
counts the instructions of the machine code, not the executed ones: those of each kernel, and of
each of its innermost loops.
"""

import argparse
import json
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _common import PROJECT, command_line, run_parts
from _n4_agreement import tissue_volume
from _processes import run
from nvrtc import Nvrtc, installed
from python_path import python_path

from octane.gpu.kernels import OPTIONS
from octane.processes.n4.cuda import MAX_BINS

logger = logging.getLogger("kernels")

PARTS = ("code", "atomics")
NO_NVDISASM = 3
"""Exit code by which `make bench` tells a skipped benchmark from one that failed."""
GENERATIONS = (75, 80, 90, 100)

KINDS = {
    "loads": r"LDG",
    "stores": r"STG",
    "shared_accesses": r"LDS|STS",
    "shared_atomics": r"ATOMS",
    "global_atomics": r"RED|ATOMG",
    "local": r"LDL|STL",
    # A division by a variable begins with the reciprocal of a float that was rounded up.
    "integer_divisions": r"I2F.*\.RP",
}
"""Opcodes by kind, of global memory unless named; the others count only in the total."""

# "/*0370*/  @!P0 BRA `(.L_x_3) ;": address, predicate, opcode, operands.
INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^;]*;")
# A loop's end. Code that was moved out of the way returns without a condition.
BRANCH = re.compile(r"(?:@!?U?P\w+\s+BRA|BRA\.U\s+!?UP\w+)\b.*(\.L_x_\w+)")
LABEL = re.compile(r"(\.L_x_\w+):")

# Run by each checkout's octane.
MODULES = """
import json, numpy
from octane.processes.n4 import cuda
from octane.resample import gpu
f4, u2 = numpy.dtype("f4"), numpy.dtype("u2")
print(json.dumps({
    "fit": cuda.fit_code(),
    "apply, float32": cuda.apply_code(f4, f4), "apply, uint16": cuda.apply_code(u2, u2),
    "band, float32": gpu.code(f4, f4, f4), "band, uint16": gpu.code(u2, f4, f4),
}))
"""

SHAPE = (64, 256, 192)
"""Shape of the fitted grid for the atomics: 256 x 1024 x 769 voxels shrunk by 4."""
BINS = 200
WARP = BANKS = 32


# The code


def disassembled(cubin: bytes, nvdisasm: str) -> dict[str, list[str]]:
    """Return the labels and instructions of each kernel, line by line."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = run([nvdisasm, "-c", file.name]).output
    parts = re.split(r"^\t\.section\t\.text\.(\w+),.*$", text, flags=re.MULTILINE)[1:]
    return {
        name: [line for line in body.splitlines() if LABEL.match(line) or INSTRUCTION.search(line)]
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def opcodes(lines: Sequence[str]) -> list[str]:
    """Return the opcodes of a piece of code, without padding."""
    found = [match[1] for line in lines if (match := INSTRUCTION.search(line))]
    return [code for code in found if code != "NOP"]


def innermost_loops(lines: Sequence[str]) -> list[int]:
    """Return the number of instructions of each loop that contains no other."""
    labels = {match[1]: i for i, line in enumerate(lines) if (match := LABEL.match(line))}
    loops = []
    for i, line in enumerate(lines):
        match = BRANCH.search(line)
        if match and labels[match[1]] < i:
            loops.append((labels[match[1]], i))
    return [
        len(opcodes(lines[a : b + 1]))
        for a, b in loops
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
    ]


def described(nvrtc: Nvrtc, code: str, generation: int, nvdisasm: str) -> dict[str, dict]:
    """Return resources and counts of each kernel of a module."""
    compiled = nvrtc.compile(code, OPTIONS, generation)
    sass = disassembled(compiled.cubin, nvdisasm)
    found = {}
    for name, resources in compiled.resources().items():
        codes = opcodes(sass[name])
        found[name] = {
            **resources._asdict(),
            "instructions": len(codes),
            **{kind: sum(bool(re.match(p, c)) for c in codes) for kind, p in KINDS.items()},
            "loops": innermost_loops(sass[name]),
        }
    return found


def measure_code(chosen: argparse.Namespace) -> dict[str, object]:
    """Compile every kernel of each checkout by each NVRTC for each generation."""
    checkouts = {"new": PROJECT} | ({"old": chosen.against} if chosen.against else {})
    modules = {
        label: json.loads(
            run([sys.executable, "-c", MODULES], environment=python_path(path / "bin")).output
        )
        for label, path in checkouts.items()
    }
    compilers = [Nvrtc(path) for path in chosen.nvrtc] or [installed(12), installed(13)]
    generations = GENERATIONS[2:3] if chosen.quick else GENERATIONS
    cases = []
    for nvrtc, generation in product(compilers, generations):
        case: dict[str, object] = {"cuda": "{}.{}".format(*nvrtc.version), "generation": generation}
        for label, codes in modules.items():
            kernels = {}
            for module, code in codes.items():
                found = described(nvrtc, code, generation, chosen.nvdisasm)
                # The other modules have one kernel each.
                kernels |= found if module == "fit" else {module: next(iter(found.values()))}
            case[label] = kernels
        cases.append(case)
        logger.info("compiled for sm_%d by NVRTC %s", generation, case["cuda"])
    return {"against": commit_of(chosen.against) if chosen.against else None, "cases": cases}


def commit_of(checkout: Path) -> str:
    """Return a checkout's commit."""
    return run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"], folder=checkout
    ).output.strip()


# The atomics


def volumes(shape: tuple[int, int, int]) -> dict[str, npt.NDArray[np.float32]]:
    """Return volumes by name: smooth tissue, speckle of one look, and one value in half of it."""
    rng = np.random.default_rng(0)
    speckle = rng.exponential(100, shape).astype(np.float32) + 1
    half = np.where(rng.random(shape) < 0.5, speckle, np.float32(50))
    return {"tissue": tissue_volume(shape), "speckle": speckle, "half of one value": half}


def turns(volume: npt.NDArray[np.float32], copies: int) -> dict[str, float]:
    """Return how many lanes of a warp meet in the worst word and in the worst bank, on average.

    Lane l adds to word ``bin * copies + l % copies``, as in count_bins.
    """
    u = np.log(volume).reshape(-1, WARP)
    slope = (u.max() - u.min()) / np.float32(BINS - 1)
    words = ((u - u.min()) / slope).astype(np.int64) * copies + np.arange(WARP) % copies

    def worst(places: npt.NDArray[np.int64], number: int) -> float:
        warps = np.arange(len(places))[:, None] * number
        counts = np.bincount((places + warps).ravel(), minlength=len(places) * number)
        return float(counts.reshape(-1, number).max(axis=1).mean())

    return {"word": worst(words, BINS * copies), "bank": worst(words % BANKS, BANKS)}


def measure_atomics(chosen: argparse.Namespace) -> dict[str, object]:
    """Model the conflicts of the histogram, with one copy and with as many as fit."""
    shape = (8, 32, 64) if chosen.quick else SHAPE
    copies = 1 << (MAX_BINS // BINS).bit_length() - 1
    cases = [
        {"volume": name, **{str(n): turns(volume, n) for n in (1, copies)}}
        for name, volume in volumes(shape).items()
    ]
    return {"shape": shape, "bins": BINS, "copies": copies, "cases": cases}


def main() -> None:
    """Measure the chosen parts."""
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--against", type=Path, help="another checkout, with its .cu files")
    parser.add_argument(
        "--nvrtc", type=Path, nargs="+", default=(), help="libnvrtc of each CUDA, if not in .tools"
    )
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"), help="path of nvdisasm")
    chosen = parser.parse_args()
    if "code" in chosen.only and not chosen.nvdisasm:
        logger.error("nvdisasm was not found: give --nvdisasm FILE, or --only atomics")
        sys.exit(NO_NVDISASM)
    run_parts(
        "kernels",
        {"code": partial(measure_code, chosen), "atomics": partial(measure_atomics, chosen)},
        chosen,
    )


if __name__ == "__main__":
    main()
