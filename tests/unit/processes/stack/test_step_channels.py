"""STACK of a channel like the reference channel, and of values that must not be averaged."""

import json

import numpy as np
import pytest
from refusals import refused

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.store.image import Image, open_image

MOVES = "section,y,x,rotation,thickness\n1,0,0,0,47\n3,23,-31,4,63\n5,-12.5,8,-2.5,52\n"
SETTINGS = {
    "section_surface": "auto",
    "section_level": True,
    "allow_missing_sections": 1,
    "excluded_sections": "4",
    "blend": 30.0,
}


@pytest.fixture
def write(write_image, tmp_path):
    """Write sections 1, 3 and 5 of a channel: tilted, (14, 20, 30) voxels of 10 um."""

    def run(name, voxels, *, has_surface=True, section_3=None, **attributes):
        paths = []
        for number, own in zip((1, 3, 5), voxels, strict=True):
            section: dict[str, object] = {"number": number, "thickness": 60.0}
            if has_surface:
                section["surface"] = {"depth": 20.0 + number, "tilt": [number, -1.5]}
            section |= section_3 or {} if number == 3 else {}
            noted = {"kind": "section", "section": section, "channel": name, **attributes}
            path = f"{name}/section_{number:02d}.ome.zarr"
            paths.append(write_image(path, own, attributes=noted))
        return paths

    return run


@pytest.fixture
def stack(tmp_path):
    """Stack a channel into ``NAME.ome.zarr`` with its record; returns the image and the metrics."""

    def run(name, sources, *, like=None, table=None, workers=2, settings=None):
        destination = tmp_path / f"{name}.ome.zarr"
        reading = InputParameters()
        parameters = StackParameters.model_validate(SETTINGS if settings is None else settings)
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        reference = None if like is None else tmp_path / f"{like}.json"
        inputs = (sources, destination, parameters, reading, execution, table, None)
        metrics = stack_sections(*inputs, reference)
        metrics.save(tmp_path / f"{name}.json", None)
        return open_image(destination), metrics

    return run


@pytest.fixture
def moves(tmp_path):
    path = tmp_path / "moves.csv"
    path.write_text(MOVES)
    return path


@pytest.fixture
def voxels(rng):
    return rng.uniform(1, 9, (3, 14, 20, 30)).astype(np.float32)


def test_a_channel_gets_the_geometry_of_the_reference_to_the_bit(write, stack, moves, voxels, rng):
    first, measured = stack("OCT", write("OCT", voxels), table=moves)
    # The record decides, even for sections that state no surface, and whatever the parameters say.
    copy = write("copy", voxels, has_surface=False)
    asked = {"allow_missing_sections": 0, "align": "rigid"}
    for settings, workers in ((None, 2), (asked, 1)):
        same, metrics = stack("copy", copy, like="OCT", workers=workers, settings=settings)
        assert same.grid == first.grid
        assert same.attributes["sections"] == first.attributes["sections"]
        np.testing.assert_array_equal(same.array.opened[:], first.array.opened[:])
    for one, other in zip(measured.figures["sections"], metrics.figures["sections"], strict=True):
        taken = ("thickness", "thickness_from", "surface", "levelled", "moved", "edge", "extent")
        assert [other[key] for key in taken] == [one[key] for key in taken]
    assert metrics.figures["boundaries"] == measured.figures["boundaries"]
    assert metrics.figures["missing_sections"] == [2]
    noise, _ = stack("noise", write("noise", rng.random((3, 14, 20, 30))), like="OCT")
    assert noise.grid == first.grid
    assert noise.attributes["sections"] == first.attributes["sections"]
    assert noise.attributes["channel"] == "noise"


@pytest.mark.parametrize(
    "axes", [*(pytest.param(axis, marks=pytest.mark.soak) for axis in "yx"), "yx"]
)
@pytest.mark.parametrize("settings", [SETTINGS, {"allow_missing_sections": 2, "align": "rigid"}])
@pytest.mark.parametrize("blank", [False, True])
def test_a_section_that_lies_flipped_is_flipped_to_the_bit(
    write, stack, voxels, axes, settings, blank, monkeypatch
):
    if blank:
        # Without its own reader, zarr reads.
        monkeypatch.setattr(Image, "reader", None)
    placed = {"imaged": [[0.0, 0.0, 150.0, 300.0]], "not_compared": [[20.0, 30.0, 90.0, 170.0]]}
    straight = write("straight", voxels, section_3=placed)
    whole, first = stack("straight", straight, settings=settings)
    y, x = (axis in axes for axis in "yx")

    def turned(box):
        edges = (200.0, 300.0) * 2
        back = [n - at for at, n in zip(box, edges, strict=True)]
        return [back[2] if y else box[0], back[3] if x else box[1],
                back[0] if y else box[2], back[1] if x else box[3]]  # fmt: skip

    other = voxels.copy()
    other[1] = np.flip(voxels[1], tuple(k for k, own in ((1, y), (2, x)) if own))
    tilt = [-3.0 if y else 3.0, 1.5 if x else -1.5]
    boxes = {name: [turned(box) for box in own] for name, own in placed.items()}
    surface = {"depth": 23.0, "tilt": tilt}
    sources = write("flipped", other, section_3={**boxes, "surface": surface})
    flips = settings | {"flip_sections": f"3: {axes}"}
    mended, second = stack("flipped", sources, settings=flips)
    np.testing.assert_array_equal(mended.array.opened[:], whole.array.opened[:])
    figures = [dict(own.figures, sections=None) for own in (first, second)]
    assert figures[0] == figures[1]
    assert [own["flip"] for own in second.figures["sections"]] == ["", "", axes, "", ""]
    assert [own.get("flip") for own in mended.attributes["sections"]][2] == axes
    assert not any("flip" in own for own in whole.attributes["sections"])
    # Another channel is flipped as the record says.
    like, third = stack("like", sources, like="flipped", settings=settings)
    np.testing.assert_array_equal(like.array.opened[:], whole.array.opened[:])
    assert like.attributes["sections"] == mended.attributes["sections"]
    assert third.settings["flip_sections"] == f"3: {axes}"


def test_a_section_that_does_not_exist_is_not_flipped(write, stack, voxels):
    sources = write("OCT", voxels)
    for number in (2, 6):
        flips = SETTINGS | {"flip_sections": f"1: x, {number}: y"}
        with refused("--flip_sections", number, error=InputError):
            stack("wrong", sources, settings=flips)
    # The user left it out.
    stack("OCT", sources, settings=SETTINGS | {"flip_sections": "4: y"})


@pytest.mark.parametrize("dtype", ["uint64", "float32", "complex128"])
def test_nearest_voxels_are_those_of_the_input_at_their_places(write, stack, moves, dtype, rng):
    z, y, x = (np.broadcast_to(own, (14, 20, 30)) for own in np.ogrid[:14, :20, :30])
    smooth = np.stack([1 + z + 20 * y + 400 * x] * 3).astype(np.float64)
    blends = {**SETTINGS, "blend": 0.0}
    linear, _ = stack("OCT", write("OCT", smooth), table=moves, settings=blends)
    # Too large for float64: an average, or a detour by it, would change the last bits.
    large = 2**60 if dtype == "uint64" else 0
    own = (smooth.astype(dtype) + np.array(large, dtype)).astype(dtype)
    sources = write("axis", own, channel_kind="nearest")
    image, metrics = stack("axis", sources, like="OCT")
    found = image.array.opened[:]
    assert found.dtype == dtype
    shown = found != 0
    assert np.isin(found[shown], own).all()
    place = (found[shown] - np.array(large, dtype)).real.astype(np.int64) - 1
    # At most half a voxel along each axis from the interpolated place.
    expected = linear.array.opened[:][shown] - 1
    both = expected >= 0
    assert shown.sum() > 5000
    assert np.abs(place[both] - expected[both]).max() <= 0.5 * (1 + 20 + 400) + 1e-3
    assert image.attributes["channel_kind"] == "nearest"
    assert metrics.figures["boundaries"] == {}
    assert all(section["brightness"] is None for section in metrics.figures["sections"])
    again, _ = stack("again", sources, like="OCT", workers=1)
    np.testing.assert_array_equal(again.array.opened[:], found)


def test_the_nearest_section_is_taken_at_a_border(write_image, stack):
    for name, kind in (("OCT", {}), ("axis", {"channel_kind": "nearest"})):
        sources = [
            write_image(
                f"{name}/section_{n:02d}.ome.zarr",
                np.full((10, 4, 5), n, np.float32),
                attributes={"kind": "section", "section": {"number": n, "thickness": 60.0}, **kind},
            )
            for n in (1, 2)
        ]
        image, _ = stack(
            name, sources, like=None if name == "OCT" else "OCT", settings={"blend": 40.0}
        )
    planes = image.array.opened[:, 1, 1]
    # Weights of the second section: 1/8, 3/8, 5/8 and 7/8.
    assert planes.tolist() == [1] * 8 + [2] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": "stitch"}, "is a record of STITCH"),
        ({"voxel_size": [10, 10, 5]}, "resample both channels alike"),
        ({"number": 7}, "are the sections 1, 3, 5, but"),
        ({"extent": [140, 200, 310]}, "is 140 x 200 x 300 micrometre large"),
        ({"edge": None}, "does not say where each section lies"),
        ({"thickness": 90.0}, "does not say where each section lies"),
    ],
)
def test_another_record_is_refused_in_one_sentence(write, stack, voxels, tmp_path, change, words):
    sources = write("OCT", voxels)
    stack("OCT", sources)
    path = tmp_path / "OCT.json"
    record = json.loads(path.read_text())
    figures = record["figures"]
    ((key, value),) = change.items()
    place = {"step": record, "voxel_size": figures}.get(key, figures["sections"][0])
    assert key in place
    place[key] = value
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=words) as error:
        stack("GFP", sources, like="OCT")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "GFP.ome.zarr").exists()


def test_a_table_and_a_reference_contradict_each_other(write, stack, voxels, moves):
    with refused("--displacements", error=InputError):
        stack("GFP", write("GFP", voxels), like="OCT", table=moves)
