"""Loops compiled for the CPU by numba when they are first called, and kept as machine code.

Later processes load the code with llvmlite alone, in milliseconds: importing numba would take a
third of the time of a short command. It is kept in the first folder that can be written:
``NUMBA_CACHE_DIR``, ``__pycache__`` beside the kernel's file, or ``octane`` in the user's cache.

At the end are operations of processors that numba does not offer, for compiled loops alone: each
becomes instructions of any processor, with the arithmetic of single values.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, update_wrapper
from itertools import count
from pathlib import Path
from struct import Struct
from types import FunctionType
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, cast

import numpy as np

from octane.core.files import read_regular, write_object
from octane.core.versions import versions

if TYPE_CHECKING:
    from llvmlite.binding.orcjit import LLJIT

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
# The linker takes a name once, whatever has become of the code.
_numbers = count()
# What makes helpers known to numba, each run once, and the modules that these stand in.
_registrations: list[Callable[[], object]] = []
_modules: set[str] = set()

NUMBERS = {
    "void": (ctypes.c_void_p, "ptr", "q"),
    "int64": (ctypes.c_int64, "i64", "q"),
    "float32": (ctypes.c_float, "float", "f4x"),
    "float64": (ctypes.c_double, "double", "d"),
}
"""Numbers that kernels take and return: types of C and LLVM, and eight bytes as of struct."""

# float32 numbers of a vector: a row of a small grid has few, and a loop costs more than such work.
LANES = 16

ENTRY = "octane_kernel"
DIGEST = hashlib.sha256().digest_size
# numba's code calls these for scratch arrays, which end with the kernel. It counts references in
# the first word of an array's owner, and finds the data by the fourth.
MEMORY = """
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %alignment) {
  %more = add i64 %size, 127
  %bytes = and i64 %more, -64
  %owner = call ptr @aligned_alloc(i64 64, i64 %bytes)
  %refused = icmp eq ptr %owner, null
  br i1 %refused, label %end, label %fill
fill:
  store i64 1, ptr %owner
  %data = getelementptr i8, ptr %owner, i64 64
  %fourth = getelementptr i8, ptr %owner, i64 24
  store ptr %data, ptr %fourth
  br label %end
end:
  ret ptr %owner
}
define void @NRT_MemInfo_call_dtor(ptr %owner) {
  call void @free(ptr %owner)
  ret void
}
"""


class Kernel(Generic[P, R]):
    """A compiled function, called as the Python function that it is made from.

    It runs without the interpreter's lock and without tests of indices. It is compiled again when
    its file has changed, or one that its helpers stand in. Arrays must be writable and have exactly
    the types of numba's ``signature``, ``"float64(float32[::1], int64)"`` for one; :data:`NUMBERS`
    are all numbers. Arrays that it makes are all that it may need of numba's runtime: no text, no
    errors, no ``reshape``.
    """

    caching = True

    def __init__(self, function: Callable[P, R], signature: str, *, allocates: bool = True) -> None:
        assert isinstance(function, FunctionType)
        update_wrapper(self, function)
        self.function, self.signature = function, signature
        self.allocates = allocates
        self.name = f"{function.__module__}.{function.__name__}"
        self._result, _, arguments = signature.rpartition("(")
        # Types of the arguments, and their axes: 0 for numbers.
        self._types = [
            (name, axes.count(",") + 1 if axes else 0)
            for name, axes in re.findall(r"(\w+)(\[.+?\])?", arguments)
        ]
        self._bind: Callable[P, Callable[[], R]] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the machine code, which the first call finds or makes."""
        return self.bound(*args, **kwargs)()

    def bound(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Check arguments once; return what runs the code on them, for one thread at a time."""
        if self._bind is None:
            with _lock:
                self._bind = self._bind or self._load()
        return self._bind(*args, **kwargs)

    def _load(self) -> Callable[P, Callable[[], R]]:
        import llvmlite.binding as llvm

        linker, (name, code) = _linker(), self._code()
        built = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(ENTRY)
        # The code is unloaded with the last reference to it.
        self._library = built.add_current_process().link(linker, f"{name}-{next(_numbers)}")
        # "void", "int64" or "UniTuple(float64, 5)".
        several = self._result.startswith("UniTuple")
        words = re.findall(r"\w+", self._result)
        result = NUMBERS[words[several]][0] * int(words[2] if several else 1)
        entry = ctypes.CFUNCTYPE(ctypes.c_int, result, ctypes.c_char_p)(self._library[ENTRY])
        types = [(np.dtype(name), axes) for name, axes in self._types]
        pack = Struct("=" + "".join(NUMBERS[name][2] for name in self._words())).pack

        def bind(*args):
            found, given = result(), []
            for i, (value, (dtype, axes)) in enumerate(zip(args, types, strict=True)):
                if not axes:
                    given.append(value)
                    continue
                if value.dtype != dtype or value.ndim != axes or not value.flags.carray:
                    raise TypeError(f"{self.name} takes {self.signature}; see argument {i}.")
                data = value.__array_interface__["data"][0]
                given += (0, 0, value.size, value.itemsize, data)
                given += value.shape + value.strides
            packed = pack(*given)

            def run(_in_use=args):
                # The one error that a kernel can have.
                if entry(found, packed):
                    raise MemoryError
                return tuple(found) if several else found[0]

            return run

        return cast("Callable[P, Callable[[], R]]", bind)

    def _words(self) -> list[str]:
        """Types of what numba's function takes, each in eight bytes.

        Of an array these are owner and parent (none), the number of its elements, their bytes, the
        data, and each axis' length and step.
        """
        whole = ["void", "void", "int64", "int64", "void"]
        taken = ((*whole, *["int64"] * 2 * axes) if axes else [name] for name, axes in self._types)
        return [name for names in taken for name in names]

    def _sources(self) -> list[bytes]:
        """Contents of the files that the loops' functions stand in."""
        files, left = set[str](), [self.function]
        while left:
            function = left.pop()
            if function.__code__.co_filename not in files:
                files.add(function.__code__.co_filename)
                named = [f for f in function.__globals__.values() if isinstance(f, FunctionType)]
                left += [f for f in named if f.__module__ in _modules]
        return [Path(file).read_bytes() for file in sorted(files)]

    def _code(self) -> tuple[str, bytes]:
        """Name of the file of machine code, and what is kept there or else made."""
        import llvmlite
        import llvmlite.binding as llvm

        written = self.function.__code__
        file = Path(written.co_filename)
        cpu = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        options = sorted(o for o in os.environ.items() if re.match("NUMBA_(?!CACHE_DIR)", o[0]))
        compilers = sys.version_info[:2], versions().get("numba"), llvmlite.__version__
        sources = Path(__file__).read_bytes(), *self._sources()
        own = self.signature, written.co_firstlineno
        made_from = repr(
            (sources, own, compilers, llvm.get_process_triple(), cpu, options)
        ).encode()
        name = f"{self.name}-{_digest(made_from).hex()[:16]}.o"
        for folder in _folders(file):
            try:
                kept = read_regular(folder / name)
            except OSError:
                continue
            check, code = kept[:DIGEST], kept[DIGEST:]
            if check == _digest(code):
                return name, code
            # A crash cut it short, or a loss of power left zeros.
            logger.warning("Cached code of %s is damaged and is made again.", self.name)
        code = self._compile()
        if Kernel.caching:
            _keep(_folders(file), name, [_digest(code), code])
        return name, code

    def _compile(self) -> bytes:
        import llvmlite.binding as llvm
        import numba
        from numba.core.registry import cpu_target

        while _registrations:
            _registrations.pop()()
        # A division by zero gives the result of IEEE: the test for it would keep loops scalar.
        make = numba.njit(
            error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=self.allocates
        )
        made = make(self.function)
        made.compile(self.signature)
        [(types, compiled)] = made.overloads.items()
        module = llvm.parse_assembly(made.inspect_llvm(types))
        entry = _entry(compiled.fndesc.llvm_func_name, self._words())  # ty: ignore
        module.link_in(llvm.parse_assembly(MEMORY + entry))
        triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
        target = llvm.Target.from_triple(triple)
        machine = target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic")
        return machine.emit_object(module)


def _entry(kernel: str, words: list[str]) -> str:
    """A function in LLVM's language that calls numba's with what stands in memory."""
    types = [NUMBERS[name][1] for name in words]
    loads = [
        f"%p{i} = getelementptr i64, ptr %given, i64 {i}\n%v{i} = load {kind}, ptr %p{i}"
        for i, kind in enumerate(types)
    ]
    taken = ", ".join(f"{kind} %v{i}" for i, kind in enumerate(types))
    return "\n".join(
        [
            f"declare i32 @{kernel}({', '.join(['ptr', 'ptr', *types])})",
            f"define i32 @{ENTRY}(ptr %result, ptr %given) {{",
            "%error = alloca ptr",
            *loads,
            f"%status = call i32 @{kernel}(ptr %result, ptr %error, {taken})",
            "ret i32 %status\n}",
        ]
    )


@cache
def _linker() -> LLJIT:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _folders(file: Path) -> list[Path]:
    """Folders where the machine code of a file's kernels may be kept."""
    folders = [Path(os.environ.get("NUMBA_CACHE_DIR") or file.parent / "__pycache__")]
    # A user may have no home.
    with suppress(RuntimeError):
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "octane"))
    return folders


def _keep(folders: list[Path], name: str, pieces: list[bytes]) -> None:
    """Write a file into the first folder that takes it, or warn once that none does."""
    for folder in folders:
        try:
            write_object(folder / name, pieces)
            return
        except OSError as error:
            refusal = error
    Kernel.caching = False
    logger.warning(
        "Compiled code cannot be cached (%s), so every process compiles it again; set "
        "NUMBA_CACHE_DIR to an empty folder that can be written.",
        refusal,
    )


def compiled(signature: str, *, allocates: bool = True) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a function a :class:`Kernel`, with IEEE arithmetic in the order written.

    One that ``allocates`` no array does not count references to parts of arrays, which is slow
    where several threads count at once.
    """
    return lambda function: Kernel(function, signature, allocates=allocates)


def inlined(*, reorder: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function callable from kernels; elsewhere it stays as it is.

    With ``reorder`` its sums may be taken in another order, and products be fused into them, which
    vector instructions need. The order is fixed at compilation: other processors may give others.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        def make() -> None:
            from numba.extending import register_jitable

            # Stated for each, because a helper would take the arithmetic of its kernel.
            register_jitable(fastmath={"reassoc", "contract"} if reorder else False)(function)

        _registrations.append(make)
        _modules.add(function.__module__)
        return function

    return register


def fetch_add(cells: np.ndarray, index: int, value: int) -> int:
    """Add to a cell of an int64 array at once for all threads; return what it held before."""
    raise NotImplementedError


def exchange(cells: np.ndarray, index: int, value: int) -> int:
    """Set a cell of an int64 array at once for all threads; return what it held before."""
    raise NotImplementedError


def give_way() -> None:
    """Let another thread have the core."""
    raise NotImplementedError


def blend(
    weights: np.ndarray,
    first: int,
    rows: np.ndarray,
    start: int,
    step: int,
    out: np.ndarray,
    at: int,
) -> None:
    """Write a vector of the weighted sum of four rows, summed in their order.

    The weights are those from element `first` on; the rows begin at element `start`, each `step`
    behind the one before. Both are float32, or float64 (half as many for a vector). The sum goes to
    the elements of `out`, float32, from `at` on.
    """
    raise NotImplementedError


def _register() -> None:
    """Make these functions callable from compiled loops."""
    from numba.core import cgutils, types
    from numba.core.cgutils import ir
    from numba.extending import lower_builtin, type_callable

    def number(value: int, bits: int = 64) -> ir.Constant:
        return ir.Constant(ir.IntType(bits), value)

    def place(context, builder, kind, array, index):
        return builder.gep(context.make_array(kind)(context, builder, array).data, [index])

    def atomic(operation, context, builder, signature, arguments):
        cell = place(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw(operation, cell, arguments[2], "seq_cst")

    for function, operation in ((fetch_add, "add"), (exchange, "xchg")):
        type_callable(function)(lambda context: lambda cells, index, value: types.int64)
        lower_builtin(function, types.Array, types.Integer, types.Integer)(
            partial(atomic, operation)
        )

    @lower_builtin(give_way)
    def sched_yield(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    type_callable(give_way)(lambda context: lambda: types.none)

    @lower_builtin(blend, types.VarArg(types.Any))
    def weighted_sum(context, builder, signature, arguments):
        weights, first, rows, start, step, out, at = arguments
        kinds = signature.args
        lanes = LANES * 32 // kinds[2].dtype.bitwidth
        vector = ir.VectorType(context.get_data_type(kinds[2].dtype), lanes)
        single = ir.VectorType(ir.FloatType(), lanes)
        nothing = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        total = None
        for tap in range(4):
            index = builder.add(first, number(tap))
            weight = builder.load(place(context, builder, kinds[0], weights, index))
            weight = builder.insert_element(nothing, weight, number(0, 32))
            weight = builder.shuffle_vector(weight, nothing, everywhere)
            row = place(context, builder, kinds[2], rows, start)
            row = builder.load(builder.bitcast(row, vector.as_pointer()), align=4)
            term = builder.fmul(weight, row)
            total = term if total is None else builder.fadd(total, term)
            start = builder.add(start, step)
        if vector != single:
            total = builder.fptrunc(total, single)
        target = place(context, builder, kinds[5], out, at)
        builder.store(total, builder.bitcast(target, single.as_pointer()), align=4)
        return context.get_dummy_value()

    type_callable(blend)(
        lambda context: lambda weights, first, rows, start, step, out, at: types.none
    )


_registrations.append(_register)
