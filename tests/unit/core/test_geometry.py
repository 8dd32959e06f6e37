"""Pixel-centred grids in micrometres."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.geometry import LENGTHS, blocks, bounds, samples


@pytest.mark.parametrize(
    ("extent", "spacing", "expected"),
    [(100, 25, 4), (3 * 3.5, 7, 2), (3 * 0.7, 1.4, 2), (2.5, 1, 3), (0.2, 1, 1), (103, 10, 10)],
)
def test_halves_are_rounded_up_and_rounding_errors_do_not_decide(extent, spacing, expected):
    assert samples(extent, spacing) == expected


@given(shape=st.tuples(*[st.integers(1, 12)] * 3), size=st.tuples(*[st.integers(1, 7)] * 3))
def test_blocks_cover_a_shape_once(shape, size):
    seen = np.zeros(shape, int)
    for region in blocks(shape, size):
        seen[region] += 1
        assert all(0 < r.stop - r.start <= n for r, n in zip(region, size, strict=True))
    assert (seen == 1).all()
    assert bounds(region).split()[0] == f"{region[0].start}:{shape[0]}"


OME_XML = (
    *("Ym", "Zm", "Em", "Pm", "Tm", "Gm", "Mm", "km", "hm", "dam", "m", "dm", "cm", "mm", "µm"),
    *("nm", "pm", "fm", "am", "zm", "ym", "Å", "thou", "li", "in", "ft", "yd", "mi", "ua", "ly"),
    *("pc", "pt"),
)
"""UnitsLength, without ``pixel`` and ``reference frame``."""
UDUNITS = (
    *("angstrom", "attometer", "centimeter", "decimeter", "exameter", "femtometer", "foot"),
    *("gigameter", "hectometer", "inch", "kilometer", "megameter", "meter", "micrometer", "mile"),
    *("millimeter", "nanometer", "parsec", "petameter", "picometer", "terameter", "yard"),
    *("yoctometer", "yottameter", "zeptometer", "zettameter"),
)
"""Units of space in OME-Zarr."""


def test_all_lengths_of_ome_xml_and_ome_zarr_are_known():
    assert {*OME_XML, *UDUNITS} <= LENGTHS.keys()
    assert not {"pixel", "reference frame", "s", "second", ""} & LENGTHS.keys()
    powers = (24, 21, 18, 15, 12, 9, 6, 3, 2, 1, 0, -1, -2, -3, -6, -9, -12, -15, -18, -21, -24)
    metric = [unit for unit in OME_XML if unit.endswith("m")]
    assert [LENGTHS[unit] for unit in metric] == [float(f"1e{n + 6}") for n in powers]
    for symbol, name in (
        *(("am", "attometer"), ("fm", "femtometer"), ("Pm", "petameter"), ("pm", "picometer")),
        *(("Mm", "megameter"), ("mm", "millimeter"), ("Zm", "zettameter"), ("zm", "zeptometer")),
        *(("Å", "angstrom"), ("ft", "foot"), ("in", "inch"), ("mi", "mile"), ("yd", "yard")),
        *(("Ym", "yottameter"), ("ym", "yoctometer"), ("pc", "parsec"), ("hm", "hectometer")),
        *(("\u00b5m", "\u03bcm"), ("\u00c5", "\u212b"), ("dm", "decimetre"), ("um", "microns")),
    ):
        assert LENGTHS[symbol] == LENGTHS[name]
    inch = LENGTHS["in"]
    assert [LENGTHS[u] / inch for u in ("thou", "li", "pt", "ft", "yd", "mi")] == pytest.approx(
        [1e-3, 1 / 12, 1 / 72, 12, 36, 63360]
    )
    assert [LENGTHS[u] for u in ("ua", "ly", "pc")] == pytest.approx(
        [1.495978707e17, 9.4607304725808e21, 3.0856775814913673e22], rel=1e-12
    )
