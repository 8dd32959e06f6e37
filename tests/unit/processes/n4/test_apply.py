"""The correction at full resolution: compiled against arrays, and the same bits in any blocks."""

from functools import partial

import numpy as np
import pytest

from octane.processes.n4 import apply
from octane.processes.n4.apply import FieldPart, correct_block

SHAPE = (9, 14, 37)
WHOLE = (slice(0, 9), slice(0, 14), slice(0, 37))


def lattice(shape, seed=0, scale=0.3):
    return np.random.default_rng(seed).uniform(-scale, scale, shape).astype(np.float32)


# Fields of different grids and sizes that contain the block.
PARTS = [
    FieldPart(lattice((4, 5, 7)), SHAPE, WHOLE),
    FieldPart(lattice((5, 4, 4), 1), (30, 14, 50), (slice(3, 12), slice(0, 14), slice(7, 44))),
    FieldPart(lattice((4, 4, 9), 2), (9, 20, 37), (slice(0, 9), slice(6, 20), slice(0, 37))),
]


def block(dtype, seed=3):
    values = np.random.default_rng(seed).uniform(0, 120, SHAPE)
    values[0, 0, :3] = (0, 1, 127)
    return values.astype(dtype)


def arrays(values, fields, *, strength=1.0, dtype=None, source=None):
    source = values if source is None else source
    dtype = np.dtype(values.dtype if dtype is None else dtype)
    return apply._correct_arrays(values, fields, strength, dtype, source, True)


def close(found, expected):
    assert found.dtype == expected.dtype
    # Halfway between two integers, the last bit of the field decides the rounding.
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=found.dtype.kind in "iu")
    assert (found == expected).mean() > (0.99 if found.dtype.kind in "iu" else 0.2)


SAME = [(t, t) for t in ("u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")]
SOAK = ("i1", "i4", "u4", "u8")
"""Types that are left to soak; on a fresh machine each has to be compiled."""


@pytest.mark.parametrize("strength", [0.3, 1])
@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        *(pytest.param(*own, marks=[pytest.mark.soak] * (own[0] in SOAK)) for own in SAME),
        *(("u2", "f4"), ("f4", "u2")),
        *(pytest.param(*own, marks=pytest.mark.soak) for own in (("f4", "f8"), ("u2", "i4"))),
    ],
)
def test_loops_correct_as_arrays_do(own, wanted, strength):
    values = block(own)
    if own != wanted:
        values[0, 0] *= 500  # rounded once and clipped
    found, field = correct_block(values, PARTS, strength=strength, dtype=wanted, with_field=True)
    expected, true_field = arrays(values, PARTS, strength=strength, dtype=wanted)
    close(found, expected)
    assert field is not None
    assert field.dtype == np.float32
    np.testing.assert_allclose(field, true_field, rtol=3e-7)


@pytest.mark.parametrize("correct", [correct_block, arrays])
@pytest.mark.parametrize(
    "dtype",
    ["u1", "i2", "u2", "i8", *(pytest.param(t, marks=pytest.mark.soak) for t in SOAK)],
)
def test_integers_are_rounded_and_clipped(dtype, correct):
    info = np.iinfo(dtype)
    values = np.zeros(SHAPE, dtype)
    values[0, 0, :5] = (0, 3, 100, info.max, info.min)
    brighter, darker = (
        correct(values, [FieldPart(np.full((4, 4, 4), field, "f4"), SHAPE, WHOLE)])[0][0, 0]
        for field in (-np.log(1.4), np.log(1.4))
    )
    assert brighter.dtype == dtype
    assert brighter[:2].tolist() == [0, 4]
    # float64 cannot represent the maximum of 64-bit integers exactly.
    assert int(brighter[3]) == pytest.approx(info.max, rel=1e-12)
    assert brighter[4] == info.min
    assert darker[2] == 71


@pytest.mark.parametrize(
    "dtype", ["u1", "u2", "i8", pytest.param("u8", marks=pytest.mark.soak), "f2", "f4", "f8"]
)
@pytest.mark.parametrize("with_field", [False, True])
def test_strength_zero_is_the_input_bit_for_bit(dtype, with_field):
    source = block(dtype)
    if dtype in ("i8", "u8"):
        source += np.array(2**62 + 1, dtype)
    if source.dtype.kind == "f":
        source[0, 0, 0] = np.nan
    values = block("f4", 5)
    found, field = correct_block(
        values, PARTS[:1], strength=0, dtype=dtype, source=source, with_field=with_field
    )
    assert found.tobytes() == source.tobytes()
    assert (field is not None) == with_field


@pytest.mark.parametrize("strength", [0, 0.3, 1])
@pytest.mark.parametrize("dtype", ["u2", "i8", "f2", "f4"])
@pytest.mark.parametrize("fields", [[], PARTS[:1], PARTS])
def test_the_result_may_take_the_place_of_its_input(fields, dtype, strength):
    values = block(dtype)
    correct = partial(correct_block, fields=fields, strength=strength, with_field=True)
    expected, true_field = correct(values.copy())
    own, strided = values.copy(), np.zeros((*SHAPE[:2], 2 * SHAPE[2]), dtype)[..., ::2]
    for out, source in ((own, own), (strided, values)):
        found, field = correct(source, out=out)
        assert found is out
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(field, true_field)


def test_any_layout_is_taken():
    values = block("f4")
    expected, _ = correct_block(values, PARTS[:1])
    fixed = values.copy()
    fixed.flags.writeable = False
    for other in (np.asfortranarray(values), fixed, values.astype(">f4")):
        found, _ = correct_block(other, PARTS[:1])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    turned = values[:, ::-1]
    np.testing.assert_array_equal(
        correct_block(turned, PARTS[:1])[0], correct_block(turned.copy(), PARTS[:1])[0]
    )


@pytest.mark.parametrize("strength", [0, 0.5, 1])
@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_without_a_field_a_block_is_blended_alone(dtype, strength):
    values, source = block(dtype), block(dtype, 4)
    found, field = correct_block(values, [], strength=strength, source=source, with_field=True)
    assert field is not None
    assert (field == 1).all()
    blend = source + (values.astype("f8") - source) * strength
    np.testing.assert_allclose(found, blend.round() if dtype == "u2" else blend, rtol=1e-6)
