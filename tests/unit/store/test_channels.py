"""Names, choices and kinds of channels."""

from pathlib import Path

import pytest
from refusals import refused

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.store.channels import channel_ids, channel_names, is_nearest
from octane.store.reading import attributes_of, chosen_channels

PATH = Path("m.ome.zarr")


def test_every_channel_has_a_name_of_its_own() -> None:
    assert channel_names([], 1) == [""]
    assert channel_names(["DAPI"], 1) == ["DAPI"]
    assert channel_names(["DAPI", "", "GFP", "GFP"], 5) == ["DAPI", "1", "GFP 2", "GFP 3", "4"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("all", [0, 1, 2]),
        ("2 0", [0, 2]),
        ("GFP,2", [1, 2]),
        ("slow axis", [2]),
        ("slow axis, DAPI", [0, 2]),
        ("1", [1]),
        ("1 GFP", [1]),
    ],
)
def test_channels_are_chosen_by_number_or_name(asked: str, found: list[int]) -> None:
    assert chosen_channels(PATH, ["DAPI", "GFP", "slow axis"], 3, asked) == found


def test_a_name_may_contain_a_comma() -> None:
    assert chosen_channels(PATH, ["561, long", "488"], 2, "561, long") == [0]


def test_a_channel_named_all_is_one() -> None:
    assert chosen_channels(PATH, ["DAPI", "all"], 2, "all") == [1]


def test_an_unknown_channel_is_refused_with_the_choices() -> None:
    with refused("2", "'Cy5'", "0", "'DAPI'", "1", "'GFP'", error=InputError):
        chosen_channels(PATH, ["DAPI", "GFP"], 2, "0 Cy5")


def test_ids_are_plain_and_differ_in_any_case() -> None:
    names = ["DAPI", "488 µm/x", "slow axis", "gfp", "GFP", "µ"]
    assert channel_ids(names) == ["DAPI", "488-m-x", "slow-axis", "c3", "c4", "c5"]


def test_kinds_are_found_by_name_or_number() -> None:
    reading = InputParameters.model_validate({"channel_kind": "axis=nearest, 1=nearest"})
    assert reading.kinds == {"axis": "nearest", "1": "nearest"}
    own = [attributes_of(PATH, ["oct", "", "axis"], 3, k, reading) for k in range(3)]
    assert own[0] == {"channel": "oct"}
    assert own[1] == {"channel": "1", "channel_kind": "nearest"}
    assert [is_nearest(attributes) for attributes in own] == [False, True, True]


def test_a_number_is_not_taken_for_a_name() -> None:
    reading = InputParameters.model_validate({"channel_kind": "1=nearest"})
    own = [attributes_of(PATH, ["1", "2", "3"], 3, k, reading) for k in range(3)]
    assert [is_nearest(attributes) for attributes in own] == [False, True, False]
    reading = InputParameters.model_validate({"channel_kind": "3=nearest"})
    assert is_nearest(attributes_of(PATH, ["1", "2", "3"], 3, 2, reading))


def test_a_kind_of_an_unknown_channel_is_refused() -> None:
    reading = InputParameters.model_validate({"channel_kind": "slow axis=nearest"})
    with refused("'slow axis'", "--channel_kind", error=InputError):
        attributes_of(PATH, ["oct"], 2, 0, reading)
