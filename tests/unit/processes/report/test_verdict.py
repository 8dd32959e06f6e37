"""The verdict: its checks find faults made in a phantom, and good subjects pass them all."""

import re

import pytest
from made_faults import FAULTS, Change, Fault, judged

from octane.config.parameters import LeaseParameters
from octane.core.errors import OctaneError
from octane.core.records import Context
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.record import LevelFigures, N4Figures, SectionFitFigures, UnchangedFigures
from octane.processes.n4.step import correct_bias, prepare
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import make_phantom
from octane.processes.report.check import Check, Settings
from octane.processes.report.summary import section_qualities
from octane.processes.report.verdict import check_subject, verdict
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import SectionFigures, StackFigures
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.record import StitchFigures
from octane.processes.stitch.step import stitch_section

FURTHER_FAULTS = (
    *("overlap wrong along x", "overlap wrong along both", "one tile of noise"),
    *("one tile transposed", "one dark tile", "gain of 0.7", "gains of three tiles"),
    *("flipped in x", "turned by 180 degrees among five", "thickness measured, one left out"),
)
"""Those left to soak: another one shows that their check finds a fault."""


@pytest.fixture
def judge(tmp_path, execution):
    """Make a phantom, change its second section, reconstruct it and judge it."""

    def run(
        change: Change | None = None, stitching=None, fault: Fault | None = None, **given
    ) -> list[Check]:
        return judged(tmp_path, given, execution, change, stitching, fault)

    return run


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[pytest.mark.soak] * (f in FURTHER_FAULTS)) for f in FAULTS],
)
def test_a_fault_is_found_by_its_check(judge, fault):
    made = FAULTS[fault]
    names, words = made.checks, made.words
    found = judge(made.change, {"overlap": made.overlap, "check_overlap": "warning"}, made)
    warned = {check.name: check for check in found if check.state == "warning"}
    # Seams may be marked as well.
    assert [name for name in warned if not name.startswith("Seams")] == names
    assert all(re.search(words, warned[name].sentence) for name in names)


def test_a_small_advantage_on_which_many_pairs_agree_is_enough(judge):
    wrong = {"overlap": (0.1, 0.25), "check_overlap": "warning"}
    found = judge(None, wrong, tile_shape=(8, 69, 51), overlap=(0.1, 0.2))
    (warned,) = [check for check in found if check.name == "Overlap along x"]
    assert warned.state == "warning"
    assert re.search(r"not 0\.25; give --overlap 0\.1,0\.(19\d|20\d),", warned.sentence)


def test_an_overlap_at_which_no_tile_fits_stops_the_section(judge, tmp_path):
    words = r"section_01.* overlap of 0\.25\d along x, not 0\.1; give --overlap 0\.2,0\.25\d,"
    with pytest.raises(OctaneError, match=words):
        judge(None, {"overlap": (0.2, 0.1)})
    assert not (tmp_path / "out" / "section_01.ome.zarr").exists()


GOOD = [
    {"seed": seed, **size, "speckle_looks": looks, **light}
    for seed, (size, looks, light) in enumerate(
        (size, looks, light)
        for looks in (1, 4, 0)
        for size, light in (
            ({"tiles": (3, 3)}, {"bias": 0.0, "shading": 0.0}),
            ({"tiles": (2, 3), "tile_shape": (8, 48, 72)}, {"bias": 1.0, "shading": 0.3}),
            ({"tiles": (4, 2), "edge_fraction": 0.25}, {"section_steps": 0.01}),
            ({"tiles": (2, 2), "overlap": (0.1, 0.15), "voxel_size": (10.0, 5.0, 5.0)}, {}),
        )
    )
]


ABUTTING = [
    {"seed": seed, "overlap": overlap, "tile_shape": shape, "tiles": (4, 4), "sections": 2}
    for seed, overlap in enumerate([(0.0, 0.0), (0.02, 0.05)])
    for shape in ((8, 26, 26), (8, 64, 64))
]
ROSE = ["Variation in tissue"]


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(subject, marks=[pytest.mark.soak] * (n in (1, 3)))
        for n, subject in enumerate(ABUTTING)
    ],
)
def test_tiles_that_hardly_overlap_fit_nowhere_else(judge, subject):
    found = judge(**{"voxel_size": (10.0, 4.0, 4.0), **subject})
    assert [check for check in found if check.state == "warning"] == []


@pytest.mark.parametrize("overlap", [(0.0, 0.0), (0.02, 0.25)])
def test_an_overlap_given_as_none_is_found(judge, overlap):
    with pytest.raises(OctaneError, match=r"give --overlap 0\.(199|20\d),"):
        judge(None, {"overlap": overlap})


# The largest seam grows with the number of sections.
@pytest.mark.parametrize(
    "subject",
    [
        # Of each size one is not left to soak, and of each speckle.
        pytest.param(subject, marks=[pytest.mark.soak] * (n not in (1, 6, 7, 8)))
        for n, subject in enumerate([*GOOD, {**GOOD[1], "sections": 16}])
    ],
)
def test_a_good_subject_raises_nothing(judge, subject):
    found = judge(**subject)
    assert [check for check in found if check.state == "warning"] == []
    assert sum(check.state == "good" for check in found) >= 7


def slab(number, y=0.0, x=0.0, rotation=0.0, **given):
    place = {"number": number, "start": 5 * number - 5, "stop": 5 * number}
    figures = {**place, "shift": (y, x), "rotation": rotation, **given}
    return SectionFigures.model_validate(figures)


@pytest.mark.parametrize(
    ("align", "third", "words"),
    [
        ("none", {"y": 6.0, "x": -6.0}, None),
        ("none", {"y": 31.0, "x": 9.0}, "Section 3: displaced .* check --section_th.* translation"),
        ("none", {"x": 31.0, "rotation": 0.5}, "Section 3: displaced .* --stack_align rigid"),
        ("none", {"rotation": -1.2}, "Section 3: displaced .* --stack_align rigid"),
        ("none", {"shift": None, "rotation": None}, None),
        ("rigid", {"y": 31.0, "moved": True}, None),
        ("rigid", {"shift": None, "rotation": None}, "Section 3: without a matching neighbour"),
    ],
)
def test_displaced_sections_are_named_with_a_remedy(align, third, words):
    sections = [slab(1), slab(2), slab(3, **third), slab(4, missing=True, shift=None)]
    check = alignment(sections, align=align)
    assert check.state == ("warning" if words else "good")
    assert re.search(words or "^$", check.sentence)
    assert check.sections == (("Section 3",) if words else ())


@pytest.mark.parametrize(
    ("align", "second", "state", "words"),
    [
        ("none", {}, "good", "; Sections 2 and 3 not compared$"),
        ("none", {"shift": None}, "not checked", "^Sections 2 and 3: no structure in common"),
        ("rigid", {}, "warning", "^Sections 2 and 3: no structure in common, not aligned; check"),
        (
            "rigid",
            {"shift": None},
            "warning",
            "^Section 1: without a matching .*; Sections 2 and 3: no ",
        ),
    ],
)
def test_neighbours_that_cannot_be_compared_are_named(align, second, state, words):
    check = alignment([slab(k, **second) for k in (1, 2, 3)], align=align, unlike=[(2, 3)])
    assert check.state == state
    assert re.search(words, check.sentence or check.value)


@pytest.mark.parametrize("align", ["none", "rigid"])
def test_displacements_that_the_user_gave_are_not_judged(align):
    far = {"y": 80.0, "given": True, "moved": True}
    check = alignment([slab(1), slab(2, **far)], align=align)
    assert check.state == "good"
    assert check.value.startswith("up to 0.0 µm")
    assert check.value.endswith("; Section 2 as given")
    check = alignment([slab(k, **far) for k in (1, 2)], align=align)
    assert check.state == "not checked"
    assert "user gave" in check.sentence


def alignment(sections, voxel_size=(40.0, 10.0, 10.0), name="Section alignment", **given):
    stack = StackFigures(sections=sections, shape=(20, 50, 50), voxel_size=voxel_size, **given)
    return next(c for c in check_subject([], {}, stack, None) if c.name == name)


def test_a_step_of_brightness_is_named_where_no_section_is_odd():
    own = {"brightness": 1.0, "step": 1.0}
    sections = [slab(1, **own), slab(2, **own | {"step": 0.6}), slab(3, **own | {"step": 0.45})]
    check = alignment(sections, name="Section brightness")
    assert check.sentence.startswith("Section 3 and later ones have 0.45 times the brightness")
    odd = [slab(4, brightness=0.3, step=0.3), slab(5, **own | {"step": 3.3})]
    check = alignment([sections[0], *odd], name="Section brightness")
    assert check.sections == ("Section 4",)


def test_sections_of_uneven_voxels_are_said_not_to_be_compared():
    sections = [slab(k, shift=None, rotation=None) for k in (1, 2)]
    check = alignment(sections, (10.0, 10.0, 12.0))
    assert check.state == "not checked"
    assert "one size in y and x" in check.sentence
    # These match nothing, which is a fault only with alignment.
    assert alignment(sections, align="none").state == "not checked"
    assert alignment(sections, align="rigid").sections == ("Section 1", "Section 2")


def n4(**given):
    level = LevelFigures(iterations=50, convergence=[0.1, 0.002])
    known = N4Figures(
        levels=[level], cv_before=0.3, cv_after=0.1, field_min=0.5, field_max=2.0,
        mask_fraction=0.5, shrunk_shape=(1, 2, 3), shrunk_spacing=(1.0, 1.0, 1.0),
    )  # fmt: skip
    return known.model_copy(update=given)


@pytest.mark.parametrize(
    ("figures", "warned"),
    [
        (n4(), []),
        (n4(levels=[LevelFigures(iterations=50, convergence=[0.02])]), ["N4 convergence"]),
        (n4(field_max=8.0), ["Range of the bias field"]),
        (n4(cv_after=0.31), ROSE),
        (n4(cv_before=0.23595, cv_after=0.23597), []),
        (n4(truth={"cv_against_truth_before": 0, "cv_against_truth_after": 1}), ROSE),
    ],
)
def test_the_correction_is_judged(figures, warned):
    found = check_subject([], {}, None, figures, 0.001)
    assert [check.name for check in found if check.state == "warning"] == warned
    unknown = check_subject([], {}, None, figures)
    assert {check.name: check.state for check in unknown}["N4 convergence"] == "not checked"


@pytest.mark.parametrize(
    ("causes", "state", "words"),
    [
        ([], "good", ""),
        (["all voxels"], "warning", "--use_all_voxels"),
        (["histogram"], "warning", "give a mask"),
        (["iterations"], "warning", "raise --n4_iterations"),
        (["levels"], "warning", "--n4_levels"),
        # Even tissue is no fault.
        (["converged"], "not checked", "tissue is even, or"),
        (["converged", "histogram"], "warning", "in s2: its histogram"),
    ],
)
def test_a_field_that_changes_nothing_is_named_with_its_cause(causes, state, words):
    flat = [UnchangedFigures(name=f"s{k}", cause=c) for k, c in enumerate(causes, start=1)]
    (check,) = [
        c for c in check_subject([], {}, None, n4(unchanged=flat)) if c.name == "Effect of N4"
    ]
    assert check.state == state
    assert words in check.sentence
    assert ("N4 changed nothing" in check.sentence) is bool(causes)


def test_a_correction_that_was_not_asked_for_is_not_judged():
    assert "Effect of N4" not in [c.name for c in check_subject([], {}, None, n4())]


@pytest.mark.parametrize("count", [1, 2])
def test_a_remedy_is_for_one_or_for_several(count):
    odd = [slab(n, brightness=0.3, flipped="y") for n in range(1, 1 + count)]
    gone = [slab(n, missing=True, shift=None) for n in range(5, 5 + count)]
    stack = StackFigures(sections=odd + gone, shape=(20, 50, 50), voxel_size=(40.0, 10.0, 10.0))
    uneven = [{"row": 0, "column": n, "brightness": 3.0} for n in range(count)]
    figures = {"section": 1, "tiles": 9, "shape": (1, 2, 3), "seam_median": 0.1, "uneven": uneven}
    tiles = {"a": StitchFigures.model_validate(figures)}
    level = LevelFigures(iterations=50, convergence=[0.02])
    fits = [
        SectionFitFigures(name=f"s{n}", planes=(0, 1), levels=[level], field_min=1, field_max=1)
        for n in range(count)
    ]
    quality = section_qualities(tiles, stack, None)
    found = check_subject(quality, tiles, stack, n4(levels=[], sections=fits), 0.001)
    said = {check.name: check.sentence for check in found}
    for name, words in {
        "Missing sections": (
            "Section 5: missing and left blank",
            "Sections 5, 6: missing and left blank",
        ),
        "Tile brightness": ("image it again, or", "image them again, or"),
        "Section brightness": ("check how it was imaged", "check how they were imaged"),
        "Section orientation": ("--flip_sections '1: y'", "--flip_sections '1-2: y'"),
        "N4 convergence": ("the field of s0 still", "the fields of s0, s1 still"),
    }.items():
        assert words[count - 1] in said[name]


@pytest.mark.parametrize(
    ("flips", "odd", "words"),
    [
        ({}, {3: "x"}, "give --flip_sections '3: x',"),
        ({7: "yx"}, {3: "x", 4: "y"}, "give --flip_sections '3: x, 4: y, 7: yx',"),
        # A section that still does not fit was flipped along the wrong axes.
        ({3: "x"}, {3: "y"}, "give --flip_sections '3: yx',"),
        ({3: "yx", 4: "y"}, {3: "x"}, "give --flip_sections '3-4: y',"),
        ({3: "x", 7: "y"}, {3: "x"}, "give --flip_sections '7: y',"),
        ({3: "x"}, {3: "x"}, "omit --flip_sections,"),
    ],
)
def test_the_flips_that_are_proposed_go_on_from_those_given(flips, odd, words):
    sections = [slab(n, flip=flips.get(n, ""), flipped=odd.get(n, "")) for n in range(1, 9)]
    stack = StackFigures(sections=sections, shape=(20, 50, 50), voxel_size=(40.0, 10.0, 10.0))
    (check,) = [
        own for own in check_subject([], {}, stack, None) if own.name == "Section orientation"
    ]
    assert check.state == "warning"
    assert words in check.sentence


@pytest.mark.parametrize(
    "fault",
    [
        "flipped in y",
        *(pytest.param(f, marks=pytest.mark.soak) for f in ("flipped in x", "rotated")),
    ],
)
def test_flips_as_proposed_mend_the_section(tmp_path, execution, fault):
    made = FAULTS[fault]
    before = judged(tmp_path / "before", {}, execution, made.change, fault=made)
    (odd,) = [own for own in before if own.name == "Section orientation"]
    value = re.search("--flip_sections '(.*?)'", odd.sentence)
    assert value is not None
    mended = made._replace(stacking={**made.stacking, "flip_sections": value[1]})
    after = judged(tmp_path / "after", {}, execution, made.change, fault=mended)
    assert [own.name for own in after if own.state == "warning"] == []


@pytest.mark.parametrize(
    ("count", "words"), [(2, "copy the correct image."), (3, "the correct images.")]
)
def test_images_given_twice_are_one_or_several(count, words):
    figures = {"tiles": 9, "shape": (1, 2, 3), "seam_median": 0.1}
    tiles = {f"{n}": StitchFigures.model_validate({"section": n, **figures}) for n in range(count)}
    (said, *_) = check_subject(section_qualities(tiles, None, None), tiles, None, None)
    assert said.sentence.endswith(words)


def shaded(*before, after=None):
    return [{"shading_before": own, "shading_after": after} for own in before]


def held_out(before, **more):
    seams = {"before": [before] * 2, "after": [0.02] * 2, "noise": [0.001] * 2}
    return {"gains_held_out": seams, **more}


def dark(*brightness):
    tiles = [{"row": 0, "column": k, "brightness": own} for k, own in enumerate(brightness)]
    return {"seam_median": 0.1, "uneven": tiles}


def placed(**given):
    return {"overlaps": [{"axis": "x", "given": 0.2, **given}], "seam_x": 1.0}


@pytest.mark.parametrize(
    ("name", "figures", "value", "words"),
    [
        ("Shading of tiles", shaded(0.01, 0.02, 0.2), "2.0 %", "^$"),
        (
            "Shading of tiles",
            shaded(0.01, 0.29, 0.3),
            "29.0 %",
            "give --stitch_flat_field es",
        ),
        ("Shading of tiles", shaded(0.3, 0.3, after=0.01), "1.0 %, 30.0 % before", "^$"),
        ("Shading of tiles", shaded(0.3, 0.3, after=0.1), "10.0 %, 30.0 % before", "does not fit"),
        ("Shading of a section", shaded(*[0.19] * 4, 0.28), "1 of 5", "Section 5: far above"),
        (
            "Missing sections",
            [{"seam_median": 0.1}] * 2,
            "1 of 2",
            r"^Section 2 holds the same image as Section 1; copy the correct image\.$",
        ),
        (
            "Missing sections",
            [{"seam_median": 0.1}] * 3,
            "2 of 3",
            "2 holds the same image as Section 1, Section 3 .*; copy the correct images",
        ),
        (
            "Tile brightness",
            [{"seam_median": 0.1}, dark(0, 0), dark(0)],
            "3 outside",
            "^2 tiles of Section 2 were not imaged, 1 tile of Section 3 was not imaged; copy or "
            r"image the missing data\.$",
        ),
        ("Tiles not imaged", [{"not_imaged": [(0, 0), (0, 2)]}, {}], "2 of 18", "^$"),
        (
            "Tiles not imaged",
            [
                {"not_imaged": [(0, 0), (1, 1)], "holes": [(1, 1)]},
                {"not_imaged": [(0, 1), (1, 1)], "holes": [(0, 1), (1, 1)]},
            ],
            "4 of 18",
            r"^row 1, column 1 of Section 1, row 0, column 1 of Section 2 and 1 more tile: not "
            "imaged",
        ),
        (
            "Tile brightness",
            [{"seam_median": 0.1}, dark(0, 2)],
            "2 outside",
            "^Section 2, row 0, column 1 is 2 times as bright as its neighbours; image it again, "
            r"or give --stitch_gain estimate\. 1 tile of Section 2 was not imaged; copy",
        ),
        (
            "Seams that light was not fitted to",
            [held_out(0.08, gains={"0,0": 0.7}), held_out(0.02, gains={"0,0": 1.0}), {}],
            "gains 0.70 to 1.00; gains: 5.0 % before, 2.0 % after, not helped: Section 2",
            "^$",
        ),
        (
            "Overlap along x",
            [placed(), {}],
            "none",
            "Section 1: .* at any overlap along x; .* mirror",
        ),
        (
            "Overlap along x",
            [placed(found=0.2), placed(found=0.2), placed(found=0.3, better=True)],
            "0.200 of a tile",
            r"Section 3: .* overlap of 0\.300 of a tile along x, not 0\.2; give --overlap 0\.300,",
        ),
    ],
)
def test_what_most_sections_or_some_show_is_judged(name, figures, value, words):
    tiles = {
        f"{n}": StitchFigures.model_validate({"section": n, "tiles": 9, "shape": (1, 2, 3), **own})
        for n, own in enumerate(figures, 1)
    }
    found = {
        c.name: c for c in check_subject(section_qualities(tiles, None, None), tiles, None, None)
    }[name]
    assert found.value == value
    assert found.state == ("good" if words == "^$" else "warning")
    assert re.search(words, found.sentence)


def judged_with(settings, figures, **stack):
    """Checks by name of one stitched section, whose steps ran with these settings."""
    own = StitchFigures.model_validate({"section": 1, "tiles": 9, "shape": (8, 2, 3), **figures})
    given = [Settings(*(settings.get(step, {}) for step in ("stitch", "stack", "n4")))]
    volume = StackFigures.model_validate(stack) if stack else None
    found = check_subject(
        section_qualities({"s": own}, volume, None), {"s": own}, volume, None, None, None, *given
    )
    return {check.name: check for check in found}


WRONG = {"overlaps": [{"axis": "y", "given": 0.2, "found": 0.3, "better": True}]}
SHIFTED = {
    "overlaps": [{"axis": "y", "given": 0.2, "found": 0.2}],
    "misplaced": [{"row": 0, "column": 1, "shift": (9, 0)}],
}
HIGH = {"seam_y": 0.4}
REFINED = {"positions": {"0,0": (0, 0)}, "nominal_positions": {"0,0": (0, 1)}}
SHADED = {"shading_before": 0.2, "shading_after": 0.1}


@pytest.mark.parametrize(
    ("name", "figures", "step", "taken", "remedy"),
    [
        ("Shading of tiles", SHADED, "stitch", {"flat_field": "estimate"}, "_field estimate"),
        ("Tile brightness", dark(2), "stitch", {"gain": "estimate"}, "--stitch_gain"),
        ("Overlap along y", WRONG, "stitch", {"positions": "from a table"}, "--overlap"),
        (
            "Overlap along y",
            HIGH | {"seam_y": 0.6},
            "stitch",
            {"flat_field": "a.tif"},
            "_flat_field",
        ),
    ],
)
def test_a_remedy_that_was_taken_is_not_proposed_again(name, figures, step, taken, remedy):
    before, after = (judged_with({step: own}, figures)[name] for own in ({}, taken))
    assert (before.state, after.state) == ("warning", "warning")
    assert remedy in before.sentence
    assert remedy not in after.sentence


@pytest.mark.parametrize(
    ("name", "figures"), [("Seams along y", HIGH), ("Tiles out of place", SHIFTED)]
)
def test_refinement_is_not_proposed_for_refined_tiles(name, figures):
    assert "--stitch_refine" in judged_with({}, figures)[name].sentence
    after = judged_with({}, figures | REFINED)[name]
    assert after.state == "warning"
    assert "--stitch_refine" not in after.sentence


@pytest.mark.parametrize("kind", ["z_profile_gain", "histogram_matching"])
def test_bands_that_n4_was_to_remove_propose_the_other_way(kind):
    taken: Context = {kind: "section" if kind == "histogram_matching" else True}
    flags = ("--n4_z_profile_gain", "--n4_histogram_matching")
    settings = Settings({}, {}, taken)
    found = check_subject([], {}, stacked({2: 1.3}), corrected({2: 1.3}), settings=settings)
    (check,) = [own for own in found if own.name == "Section boundaries"]
    assert [flag in check.sentence for flag in flags] == [kind not in flag for flag in flags]


def test_a_seam_that_stands_out_is_named_and_the_value_says_that_z_was_not_compared():
    pair = {"first": (0, 1), "second": (1, 1), "mismatch": 0.3}
    found = judged_with({}, {"seam_y": 0.02, "worst_y": pair, "not_in_z": "fewer than 24 planes"})
    assert found["Seams along y"].sections == ("Section 1",)
    assert "row 0, column 1 and row 1, column 1 differ by 30%" in found["Seams along y"].sentence
    # Where all seams are high, none stands out.
    found = judged_with({}, {"seam_y": 0.09, "worst_y": {**pair, "mismatch": 0.25}})
    assert found["Seams along y"].state == "good"
    figures = {"overlaps": [{"axis": "y", "given": 0.2, "found": 0.2}]}
    found = judged_with({}, {**figures, "not_in_z": "fewer than 24 planes"})
    assert found["Tiles out of place"].value == "0; z not compared (fewer than 24 planes)"
    assert judged_with({}, figures)["Tiles out of place"].value == "0"


def stacked(boundaries):
    slabs = [SectionFigures(number=n, start=n, stop=n + 1) for n in (1, 2, 3)]
    figures = {"sections": slabs, "boundaries": boundaries, "shape": (3, 2, 3)}
    return StackFigures.model_validate({**figures, "voxel_size": (1.0, 1.0, 1.0)})


def corrected(boundaries, **more):
    given = {
        **more,
        "levels": [],
        "cv_before": 0.2,
        "cv_after": 0.1,
        "field_min": 1.0,
        "field_max": 1.1,
    }
    grid = {"mask_fraction": 0.5, "shrunk_shape": (1, 2, 3), "shrunk_spacing": (1.0, 1.0, 1.0)}
    return N4Figures.model_validate({**given, **grid, "boundaries": boundaries})


@pytest.mark.parametrize(
    ("stack", "n4", "state", "value"),
    [
        ({2: 1.14, 3: 1.02}, {2: 1.03, 3: 0.98}, "good", "14.0 % before, 3.0 % after N4"),
        ({2: 1.14, 3: 1.02}, {2: 1.02, 3: 0.8}, "warning", "14.0 % before, 25.0 % after N4"),
        ({2: 1.02, 3: 0.8}, None, "warning", "25.0 %"),
        (None, {2: 1.02, 3: 0.8}, "warning", "25.0 %"),
        (None, {2: 1.02, 3: 1.03}, "good", "3.0 %"),
        ({2: 1.02, 3: 0.8}, {}, "not checked", "–"),
        (None, {}, "not checked", "–"),
    ],
)
def test_bands_are_judged_in_the_last_volume(stack, n4, state, value):
    found = check_subject(
        [], {}, None if stack is None else stacked(stack), None if n4 is None else corrected(n4)
    )
    (check,) = [check for check in found if check.name == "Section boundaries"]
    assert (check.state, check.value) == (state, value)
    if state == "warning":
        assert check.sections == ("Section 3",)
        assert "--n4_z_profile_gain" in check.sentence
        assert "--n4_histogram_matching section" in check.sentence


@pytest.mark.parametrize(("after", "state"), [(0.02, "good"), (0.1, "warning")])
@pytest.mark.parametrize(
    ("taken", "flag"),
    [
        ({"z_profile_gain": True, "histogram_matching": "none"}, "--n4_z_profile_gain"),
        ({"histogram_matching": "plane"}, "--n4_histogram_matching"),
    ],
)
def test_maps_of_planes_are_judged_by_the_jumps_that_they_are_for(after, state, taken, flag):
    n4 = corrected({2: 1.02}, jumps={"before": 0.1, "after": after})
    found = check_subject([], {}, None, n4, settings=Settings({}, {}, taken))
    (check,) = [own for own in found if own.name == "Jumps at section boundaries"]
    assert check.state == state
    assert (flag in check.sentence) == (state == "warning")
    names = [own.name for own in check_subject([], {}, None, corrected({2: 1.02}))]
    assert "Jumps at section boundaries" not in names


def test_a_band_at_a_section_that_another_check_marks_is_not_judged():
    stack = stacked({2: 1.02, 3: 0.5})
    stack.sections[2].brightness = 0.4
    found = {check.name: check for check in check_subject([], {}, stack, None)}
    assert found["Section brightness"].sections == ("Section 3",)
    assert found["Section boundaries"].state == "good"
    assert found["Section boundaries"].value == "2.0 %"


def test_bands_are_judged_next_to_tiles_that_were_not_imaged():
    figures = {"tiles": 12, "shape": (1, 2, 3), "not_imaged": [(0, 3)], "holes": [(0, 3)]}
    tiles = {"s": StitchFigures.model_validate({"section": 2, **figures})}
    stack = stacked({2: 1.14, 3: 1.15})
    found = {check.name: check for check in check_subject([], tiles, stack, None)}
    assert found["Tiles not imaged"].sections == ("Section 2",)
    assert found["Section boundaries"].sections == ("Section 2", "Section 3")
    # A dark section explains both jumps.
    stack.sections[1].brightness = 0.4
    found = {check.name: check for check in check_subject([], tiles, stack, None)}
    assert found["Section boundaries"].state == "not checked"
    assert found["Section boundaries"].sentence.startswith("All boundaries touch sections whose")


def test_a_tile_out_of_place_is_named_by_its_row_of_the_table():
    def said(*misplaced):
        figures = {"section": 1, "tiles": 9, "shape": (1, 2, 3), "misplaced": misplaced}
        figures["overlaps"] = [{"axis": "x", "given": 0.2, "found": 0.2}]
        tiles = {"s": StitchFigures.model_validate(figures)}
        found = {check.name: check.sentence for check in check_subject([], tiles, None, None)}
        return found["Tiles out of place"]

    one = {"row": 1, "column": 2, "shift": (30, -20)}
    assert "or change row 1,1,2 in a copy of SUBJECT_positions.csv and give it as" in said(one)
    assert "or change their rows in a copy" in said(one, {"row": 0, "column": 0})
    deeper = {"row": 2, "column": 0, "planes": 3}
    refine = "--stitch_refine"
    assert all(way in said(deeper) for way in (refine, "column z", "--positions"))
    assert said(one, deeper).count("SUBJECT_positions.csv") == 2


def test_a_tile_that_refinement_moved_in_z_is_no_fault():
    figures = {"section": 1, "tiles": 9, "shape": (32, 2, 3), "depths": {"1,1": -3}}
    figures["overlaps"] = [{"axis": "x", "given": 0.2, "found": 0.2}]
    places = {"nominal_positions": {"1,1": (0, 0)}, "positions": {"1,1": (0, 0)}}

    def found(**more):
        tiles = {"s": StitchFigures.model_validate({**figures, **places, **more})}
        (check,) = (
            c for c in check_subject([], tiles, None, None) if c.name == "Tiles out of place"
        )
        return check

    assert (found().state, found().sections) == ("good", ())
    assert "1 moved in z" in found().value
    # The remedy that was taken is not given again.
    left = found(misplaced=[{"row": 2, "column": 0, "planes": 3}])
    assert left.state == "warning"
    assert "--positions" in left.sentence
    assert "--stitch_refine" not in left.sentence


@pytest.fixture(scope="module")
def demo(tmp_path_factory, execution, reading):
    """The sections of make demo, stacked: the volume and STACK's figures."""
    folder = tmp_path_factory.mktemp("demo")
    make_phantom(folder / "phantom", PhantomParameters(), execution)
    ten, even = ResampleParameters(resolution=(10.0,) * 3), StitchParameters(flat_field="estimate")
    sections = []
    for source in sorted((folder / "phantom" / "mosaics").iterdir()):
        resampled, stitched = (folder / step / source.name for step in ("resampled", "stitched"))
        resample_image(source, resampled, ten, reading, execution)
        stitch_section(resampled, stitched, even, reading, execution)
        sections.append(stitched)
    volume = folder / "volume.ome.zarr"
    metrics = stack_sections(sections, volume, StackParameters(), reading, execution)
    return volume, StackFigures.model_validate(metrics.figures)


@pytest.mark.soak
@pytest.mark.parametrize("gain", [False, True])
def test_the_demo_has_bands_unless_it_is_run_as_the_check_says(
    demo, reading, execution, tmp_path, gain
):
    volume, stack = demo
    given = {"mask": "tissue", "shrink_factor": 2, "iterations": (50, 50), "z_profile_gain": gain}
    parameters = N4Parameters.model_validate(given)
    run = prepare(volume, tmp_path / "n4.ome.zarr", parameters, reading, execution)
    n4 = N4Figures.model_validate(correct_bias(run, LeaseParameters()).figures)
    found = check_subject(section_qualities({}, stack, n4), {}, stack, n4)
    assert verdict(found, 0).startswith("Good" if gain else "Look at 1 of ")
    warned = [check.name for check in found if check.state == "warning"]
    assert warned == ([] if gain else ["Section boundaries"])


def test_what_cannot_be_compared_is_not_checked_and_says_why():
    tiles = {"s": StitchFigures(section=1, tiles=1, shape=(1, 2, 3))}
    slab = SectionFigures(number=1, start=0, stop=1)
    stack = StackFigures(sections=[slab], shape=(1, 2, 3), voxel_size=(1.0, 1.0, 1.0))
    found = check_subject(section_qualities(tiles, stack, None), tiles, stack, None)
    unknown = [check for check in found if check.state == "not checked"]
    assert len(unknown) == 15
    assert sum(check.sentence.startswith("No tiles overlap") for check in unknown) == 7
    # A single section lacks neighbours.
    assert not [check for check in unknown if "neighbouring sections" in check.sentence]
    assert sum(check.sentence == "Fewer than two sections were imaged." for check in unknown) == 4
    assert all(check.value == "–" and check.sentence for check in unknown)
    assert not [check for check in found if check.state == "warning"]


BEGUN = "data begin within the tissue"


def judged_cuts(*sections, boundaries=None):
    """Checks of sections, each given by its surface as measured and its slab; 1 mm by 2 mm."""
    tiles, slabs = {}, []
    for number, (surface, slab) in enumerate(sections, 1):
        figures = {"section": number, "tiles": 9, "shape": (30, 100, 200), "surface": surface}
        tiles[f"s{number}"] = StitchFigures.model_validate(figures)
        slabs.append({"number": number, "start": number, "stop": number + 1, **slab})
    figures = {"sections": slabs, "shape": (9, 100, 200), "voxel_size": (10.0, 10.0, 10.0)}
    more = {"boundaries": boundaries or {}, "align": "none"}
    stack = StackFigures.model_validate(figures | more)
    return {
        c.name: c for c in check_subject(section_qualities(tiles, stack, None), tiles, stack, None)
    }


def deep(depth, tilt=(0.0, 0.0), std=0.5, rough=2.0, **slab):
    """A section with a surface that was measured, and used unless its slab says otherwise."""
    found = {"depth": depth, "tilt": tilt, "depth_std": std, "tilt_std": (0.01, 0.01)}
    return found | {"rough": rough}, {"surface": depth, "surface_from": "measured", **slab}


def given(depth, surface=0.0, **more):
    return deep(depth, **more, surface=surface, surface_from="as given")


UNSEEN = {"reason": BEGUN}
ODD = {"reason": "two interfaces"}, {"surface": 31.0, "surface_from": "of the other sections"}


def test_surfaces_of_sections_from_another_run_are_not_called_good():
    check = judged_cuts((None, {"surface": 31.0, "surface_from": "measured"}))["Section surface"]
    assert (check.state, check.value) == ("not checked", "–")
    assert "STACK's log" in check.sentence


@pytest.mark.parametrize(
    ("sections", "value", "sentence"),
    [
        ([given(9), given(-4)], "-4 to 9 µm deep", ""),
        ([given(41.26, 40), given(36, 40)], "36 to 41.3 µm deep", ""),
        # Twice its standard deviation is not known.
        ([given(17, std=4)], "17 µm deep", ""),
        (
            [given(38), given(3), given(42)],
            "3 to 42 µm deep",
            "Sections 1, 3: the surface lies 38 to 42 µm deep, but 0 µm is cropped. "
            "Give --section_surface auto.",
        ),
        (
            [given(2, 40), (UNSEEN, {"surface": 40.0, "surface_from": "as given"})],
            "2 µm deep, 1 of 2 measured",
            "Section 1: the surface lies 2 µm deep, but 40 µm is cropped. "
            "Give --section_surface auto.",
        ),
        (
            [given(30, tilt=(0, 0.6))],
            "30 µm deep",
            "Section 1: the surface lies 30 µm deep, but 0 µm is cropped. Section 1: the surface "
            "rises by up to 20.9 µm across the section. "
            "Give --section_surface auto and --section_level true.",
        ),
        ([deep(12), deep(60, tilt=(0.2, -0.1))], "12 to 60 µm deep", ""),
        (
            [deep(12), deep(60, tilt=(-0.5, 0.5))],
            "12 to 60 µm deep",
            "Section 2: the surface rises by up to 26.2 µm across the section. "
            "Give --section_level true.",
        ),
        ([deep(60, tilt=(-0.5, 0.5), levelled=(-0.5, 0.5))], "60 µm deep", ""),
        (
            [deep(31), ODD],
            "31 µm deep, 1 of 2 measured",
            "Section 2 (two interfaces): no surface was measured, 31 µm is cropped; look at the "
            "pictures.",
        ),
        (
            [deep(31, rough=14), deep(31)],
            "31 µm deep",
            "Section 1: the surface is 14 µm off a plane; look for torn tissue.",
        ),
    ],
)
def test_surfaces_are_judged_with_a_remedy(sections, value, sentence):
    found = judged_cuts(*sections)
    check = found["Section surface"]
    assert (check.value, check.sentence) == (value, sentence)
    assert check.state == ("warning" if sentence else "good")
    named = ", ".join(re.findall(r"Sections? ([\d, ]*\d)", sentence))
    assert {own.removeprefix("Section ") for own in check.sections} == {*named.split(", ")} - {""}
    assert "Section thickness" not in found


def test_data_that_begin_within_the_tissue_are_not_blamed():
    begun = UNSEEN, {"surface": 0.0, "surface_from": "as given"}
    check = judged_cuts(begun, begun)["Section surface"]
    assert check.state == "not checked"
    assert check.sentence == f"Sections 1, 2 ({BEGUN}): no surface was measured."
    # Records without measurements do not show the check.
    assert "Section surface" not in judged_cuts((None, {}), (None, {"missing": True}))


CUT = None, {"thickness": 163, "measured_thickness": 163, "thickness_from": "measured"}
STATED = None, {"thickness": 150, "thickness_from": "from the metadata"}
LOST = None, {**STATED[1], "thickness_reason": "they share too little tissue"}


@pytest.mark.parametrize(
    ("sections", "value", "sentence"),
    [
        ([CUT, STATED], "163 µm", ""),
        (
            [CUT, LOST, LOST, STATED],
            "163 µm",
            "Sections 2, 3 (they share too little tissue): not measured, so it is as "
            "stated; look at the pictures.",
        ),
        (
            [LOST, STATED],
            "none measured",
            "Section 1 (they share too little tissue): not measured, so it is as "
            "stated; look at the pictures.",
        ),
        (
            [(None, {**LOST[1], "thickness_from": "the imaged depth"}), STATED],
            "none measured",
            "Section 1 (they share too little tissue): not measured, so it is the imaged depth; "
            "give --section_thickness.",
        ),
    ],
)
def test_sections_whose_thickness_was_not_measured_are_named(sections, value, sentence):
    check = judged_cuts(*sections)["Section thickness"]
    assert (check.value, check.sentence) == (value, sentence)
    assert check.state == ("warning" if sentence else "good")
    assert "Section thickness" not in judged_cuts(STATED, STATED)


def test_displacements_measured_on_water_are_not_judged():
    moved = {"shift": (0.0, 3.0), "rotation": 1.7}
    check = judged_cuts(given(0, **moved), given(30, **moved))["Section alignment"]
    assert check.sections == ("Section 1",)
    assert check.value == "up to 3.0 µm and 1.70°; Section 2 not compared"
    check = judged_cuts(given(30, **moved), given(30, **moved))["Section alignment"]
    assert check.state == "not checked"
    assert "given depth" in check.sentence


def test_bands_of_water_are_not_judged_a_second_time():
    bands = {2: 0.2, 3: 1.3}
    found = judged_cuts(given(30), given(0), given(0), boundaries=bands)
    assert found["Section boundaries"].sections == ("Section 3",)
    found = judged_cuts(given(30), given(0), given(30), boundaries=bands)
    assert found["Section boundaries"].sentence.startswith("All boundaries touch sections whose")
