"""Sections and whole: how their fields add up, on arrays."""

import numpy as np
import pytest

from octane.n4.fit import BiasFit, LevelReport, log_field, shrink_slices
from octane.n4.mesh import Mesh
from octane.n4.modes import BiasModel, SectionFit
from octane.n4.plan import Part

SHAPE = (20, 24, 28)
MESH = Mesh((4, 4, 4), (4,), (1, 1, 1))
KEEP = shrink_slices(SHAPE, (1, 2, 2))
PARTS = (Part("a", 2, 9, slice(2, 9), MESH), Part("b", 9, 20, slice(9, 20), MESH))


def lattice(seed):
    values = np.random.default_rng(seed).normal(0, 0.3, (4, 4, 4)).astype(np.float32)
    return BiasFit(values, (LevelReport((0.1,), False),))


@pytest.fixture
def model():
    parts = tuple(SectionFit(part, lattice(k)) for k, part in enumerate(PARTS))
    return BiasModel(SHAPE, lattice(9), parts)


def whole_field(model):
    """The log field as the pieces of a region add up to it."""
    out = np.zeros(SHAPE, np.float32)
    for planes, fields in model.pieces((slice(None),) * 3):
        for lattice, shape, region in fields:
            out[planes] += log_field(BiasFit(lattice, ()), shape, region)
    return out


def test_fields_add_up_each_on_its_own_planes(model):
    field = whole_field(model)
    whole = log_field(model.whole, SHAPE)
    np.testing.assert_array_equal(field[:2], whole[:2])
    for section in model.sections:
        planes = slice(section.part.start, section.part.stop)
        own = log_field(section.fit, (planes.stop - planes.start, *SHAPE[1:]))
        np.testing.assert_array_equal(field[planes], whole[planes] + own)


def test_on_the_shrunk_grid_it_is_the_same_field(model):
    np.testing.assert_allclose(model.on_grid(KEEP), whole_field(model)[KEEP], atol=1e-6)
