"""Operations of processors that numba does not offer to compiled loops.

In Python each is a function that does the same, but not at once for all threads. In compiled loops
it becomes instructions of any processor, with the arithmetic of single values.
"""

from __future__ import annotations

import os
from functools import cache, partial

import numpy as np

from octane.core.compiled import extensions

# float32 numbers of a vector: a row of a small grid has few, and a loop costs more than such work.
LANES = 16


def fetch_add(cells: np.ndarray, index: int, value: int) -> int:
    """Add to a cell of an int64 array at once for all threads; return what it held before."""
    return exchange(cells, index, int(cells[index]) + value)


def exchange(cells: np.ndarray, index: int, value: int) -> int:
    """Set a cell of an int64 array at once for all threads; return what it held before."""
    before, cells[index] = int(cells[index]), value
    return before


def give_way() -> None:
    """Let another thread have the core."""
    os.sched_yield()


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

    Parameters
    ----------
    weights, rows : float32, or both float64 (half as many for a vector)
        The weights are those from element `first` on; the rows begin at element `start`, each
        `step` behind the one before.
    out : float32
        The sum goes to its elements from `at` on.
    """
    weights, values, lanes = weights.reshape(-1), rows.reshape(-1), LANES * 4 // rows.itemsize
    total = weights[first] * values[start : start + lanes]
    for tap in (1, 2, 3):
        total += weights[first + tap] * values[start + tap * step :][:lanes]
    out[at : at + lanes] = total


@cache
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


extensions[__name__] = _register
