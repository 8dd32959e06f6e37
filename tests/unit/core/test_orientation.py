"""Orientations of axes, with the letters and vocabularies of other programs as oracles."""

from itertools import permutations, product

import nibabel as nib
import numpy as np
import pytest
from brainglobe_space import AnatomicalSpace
from hypothesis import given
from hypothesis import strategies as st
from ngff_zarr import AnatomicalOrientationValues
from nibabel.quaternions import quat2mat
from refusals import refused

from octane.core.orientation import (
    PAIRS,
    UNSTATED,
    VALUES,
    are_same,
    code_of,
    contradict,
    directions_of,
    orientation_of,
    overruled_orientation,
    read_orientation,
    spelled_orientation,
)

CODES = ["".join(ends) for axes in permutations(("RL", "AP", "SI")) for ends in product(*axes)]
OPPOSITE = str.maketrans("RLAPSI", "LRPAIS")
TO_RAS = np.diag([-1, -1, 1])
"""From ITK's left, posterior, superior to nibabel's right, anterior, superior."""


def test_the_vocabulary_is_that_of_ngff_zarr():
    assert len(CODES) == len(set(CODES)) == 48
    assert sorted(VALUES) == sorted(value.value for value in AnatomicalOrientationValues)


@pytest.mark.parametrize("code", CODES)
def test_a_code_means_what_nibabel_and_brainglobe_mean(code):
    orientation = read_orientation([code.lower()])
    assert read_orientation(orientation) == read_orientation([*code]) == orientation
    assert code_of(orientation) == code
    directions = directions_of(orientation)
    assert directions is not None
    assert orientation_of(directions.ravel().tolist()) == orientation
    # nibabel has x first, and names the ends as octane does.
    affine = np.eye(4)
    affine[:3, :3] = TO_RAS @ directions
    assert nib.aff2axcodes(affine) == tuple(reversed(code))
    # brainglobe has z first, and names the ends at which axes start.
    space = AnatomicalSpace(code.translate(OPPOSITE))
    assert [value[0] + value.split("-to-")[1][0] for value in orientation] == list(
        space.axes_description
    )
    # Voxel (0, 0, 0) of the data is where it belongs in brainglobe's own turning of a stack.
    stack = np.arange(24).reshape(2, 3, 4)
    turned = space.map_stack_to("ial", stack)  # z to superior, y to posterior, x to the right
    image = nib.Nifti1Image(stack.transpose(2, 1, 0), affine, dtype=np.int64)
    ras = np.asarray(nib.as_closest_canonical(image).dataobj)  # x, y and z to R, A and S
    np.testing.assert_array_equal(turned, ras.transpose(2, 1, 0)[:, ::-1])


FORMS = ("R L, A P and S I", "PIR", "anterior-to-posterior")
"""What an error names where an orientation is written in another form."""


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["PIX"], FORMS),
        (["PI"], FORMS),
        (["PIRS"], FORMS),
        (["anterior-to-posterior", "superior-to-inferior"], FORMS),
        (["anterior-to-inferior", *VALUES[:2]], FORMS),
        (["PAR"], ("two axes",)),
        (["RIL"], ("two axes",)),
        (
            ["rostral-to-caudal", "anterior-to-posterior", "left-to-right"],
            ("two axes",),
        ),
    ],
)
def test_other_words_are_refused(words, names):
    with refused(*names, error=ValueError):
        read_orientation(words)


ROTATIONS = st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1)


@given(ROTATIONS)
def test_directions_are_an_orientation_only_along_axes(quaternion):
    directions = quat2mat(np.array(quaternion))
    found = orientation_of(directions.ravel().tolist())
    along = np.sort(np.abs(directions), 0)[:2].max() < 1e-5
    oblique = np.sort(np.abs(directions), 0)[1].max() > 2e-3
    if along:
        near = directions_of(found)
        assert near is not None
        np.testing.assert_allclose(near, directions, atol=1e-5)
    if oblique:
        assert found == UNSTATED


def test_an_angle_of_a_tenth_of_a_degree_is_oblique_and_rounding_is_not():
    for angle, is_along in ((0.1, False), (0.04, True)):
        a = np.radians(angle)
        matrix = [np.cos(a), -np.sin(a), 0, np.sin(a), np.cos(a), 0, 0, 0, 1]
        assert (orientation_of(matrix) != UNSTATED) == is_along
        assert code_of(orientation_of(matrix, tolerance=1)) == "SPL"


def test_words_of_a_brain_are_directions_and_those_of_a_limb_are_not():
    brain = read_orientation(["caudal-to-rostral", "dorsal-to-ventral", "left-to-right"])
    assert code_of(brain) == "AIR"
    assert not contradict(brain, read_orientation(["AIR"]))
    assert are_same(brain, read_orientation(["AIR"]))
    assert contradict(brain, read_orientation(["PIR"]))
    limb = read_orientation(["proximal-to-distal", "dorsal-to-palmar", "left-to-right"])
    assert directions_of(limb) is None
    assert code_of(limb) == code_of(UNSTATED) == ""
    # What one does not state cannot differ.
    assert not contradict(("", "", "left-to-right"), brain)
    assert not are_same(("", "", "left-to-right"), brain)


def test_a_replaced_orientation_is_named_in_words():
    stated, given = read_orientation(["SPL"]), read_orientation(["PIR"])
    assert overruled_orientation(stated, given) == (
        "The stated orientation (z inferior to superior, y anterior to posterior, x right to left) "
        "is replaced by z anterior to posterior, y superior to inferior, x left to right, as "
        "--orientation says."
    )
    assert overruled_orientation(stated, None) == overruled_orientation(stated, stated) == ""
    assert overruled_orientation(UNSTATED, given) == ""
    assert spelled_orientation(("", "", PAIRS[0][0] + "-to-left")) == "x right to left"
