"""The tasks of a subject: what each reads, by name."""

from dataclasses import replace

import pytest

from octane.processes.preflight.tasks import ChannelTasks, SubjectTasks, list_tasks

REPORT = {"channels": "--workers 1", "report": ""}
MOSAICS = SubjectTasks(
    *("a", "mosaic", ["s1", "s2"], [ChannelTasks("")]),
    *(["resample", "stitch", "stack", "n4", "pyramid"], [], REPORT),
)
VOLUME = replace(MOSAICS, kind="volume", items=["brain"], steps=["resample", "n4", "pyramid"])


def reads(subject):
    """What each task reads, without the name of the subject; a group for each of its inputs."""
    return {
        task.name: " | ".join(
            " ".join(name.removeprefix("a/") for name in names) for names in task.reads.values()
        ).strip(" |")
        for task in list_tasks(subject)
        if task.step != "result"
    }


CHAIN = {
    "s1_resample": "input/s1",
    "s1_stitch": "s1_resample",
    "s2_resample": "input/s2",
    "s2_stitch": "s2_resample",
    "stack": "s1_stitch s2_stitch",
    "n4": "stack",
    "pyramid": "n4",
    "report": "s1_resample/record s1_stitch/record s2_resample/record s2_stitch/record "
    "stack/record n4/record pyramid/record | input | pyramid",
}


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param(MOSAICS, CHAIN, id="mosaics"),
        pytest.param(
            VOLUME,
            {
                "brain_resample": "input/brain",
                "n4": "brain_resample",
                "pyramid": "n4",
                "report": "brain_resample/record n4/record pyramid/record | input | pyramid",
            },
            id="one volume",
        ),
        pytest.param(
            replace(MOSAICS, steps=["resample", "stitch"]),
            {name: CHAIN[name] for name in [*CHAIN][:4]}
            | {"report": f"{' '.join(f'{name}/record' for name in [*CHAIN][:4])} | input"},
            id="until stitch",
        ),
        pytest.param(
            replace(VOLUME, steps=[]),
            {"report": "input | input/brain"},
            id="all steps are skipped",
        ),
        pytest.param(
            replace(MOSAICS, items=["s1"], steps=["mosaic", "stitch", "stack"]),
            {
                "s1_mosaic": "tiles/s1 | tile_list/s1",
                "s1_stitch": "s1_mosaic",
                "stack": "s1_stitch",
                "report": "s1_mosaic/record s1_stitch/record stack/record | input | stack",
            },
            id="tiles",
        ),
        pytest.param(
            replace(MOSAICS, kind="section", steps=["stack", "pyramid"]),
            {
                "stack": "input/s1 input/s2",
                "pyramid": "stack",
                "report": "stack/record pyramid/record | input | pyramid",
            },
            id="sections without N4",
        ),
        pytest.param(
            replace(
                *(MOSAICS,),
                file_parameters=[
                    *("positions", "displacements", "stitch_flat_field", "stitch_gain"),
                    *("n4_mask", "truth"),
                ],
                steps=["stitch", "stack", "n4"],
                items=["s1"],
            ),
            {
                "s1_stitch": "input/s1 | positions/s1 | stitch_flat_field |  | stitch_gain/s1",
                "stack": "s1_stitch | displacements",
                "n4": "stack | n4_mask | truth",
                "report": "s1_stitch/record stack/record n4/record | input | n4",
            },
            id="the user's files",
        ),
    ],
)
def test_every_task_reads_what_an_earlier_one_makes(subject, expected):
    assert reads(subject) == expected


TWO = [ChannelTasks(""), ChannelTasks("red")]


def test_another_channel_lies_where_the_reference_does():
    subject = replace(
        *(MOSAICS,),
        items=["s1"],
        channels=TWO,
        steps=["stitch", "stack", "n4", "pyramid"],
        file_parameters=[
            *("positions", "displacements", "stitch_flat_field", "stitch_gain"),
            *("n4_mask", "truth"),
        ],
        joins_channels=True,
    )
    found = reads(subject)
    assert {name: text for name, text in found.items() if "red" in name or name == "channels"} == {
        "s1_red_stitch": "input/s1 |  | stitch_flat_field | s1_stitch_metrics.json"
        " | stitch_gain/s1",
        "red_stack": "s1_red_stitch |  | stack_metrics.json",
        "red_n4": "red_stack | n4_mask",
        "red_pyramid": "red_n4",
        "channels": "pyramid red_pyramid",
    }
    assert found["report"].endswith("| input | channels")
    shared = reads(replace(subject, shares_tissue=True))
    assert shared["red_n4"] == "red_stack | n4_mask |  | stack"
    assert shared["n4"] == found["n4"]


def test_a_channel_that_is_only_measured_ends_with_its_sections():
    only = replace(MOSAICS, channels=[ChannelTasks("", is_written=False), ChannelTasks("red")])
    names = [*reads(replace(only, joins_channels=True))]
    assert "stack" in names
    assert {"n4", "pyramid"}.isdisjoint(names)
    assert names[-4:] == ["red_n4", "red_pyramid", "channels", "report"]


def test_tiles_of_each_channel_are_files_of_its_own():
    found = reads(replace(MOSAICS, items=["s1"], channels=TWO, steps=["mosaic", "stack"]))
    assert found["s1_mosaic"] == "tiles/s1 | tile_list/s1"
    assert found["s1_red_mosaic"] == "tiles/s1_red | tile_list/s1_red"


@pytest.mark.parametrize(
    ("steps", "marked"),
    [
        (["stitch", "stack", "n4", "pyramid"], []),
        (["stitch", "stack", "n4"], ["n4", "red_n4"]),
        (["stitch", "stack"], ["stack", "red_stack"]),
    ],
)
def test_the_last_volumes_are_no_results_where_this_subject_alone_has_channels(steps, marked):
    subject = replace(MOSAICS, channels=TWO, steps=steps, joins_channels=True)
    alone = list_tasks(replace(subject, lead_id="oct"))
    assert [task.name for task in alone if "joined" in task.meta] == marked
    assert not any("joined" in task.meta for task in list_tasks(subject))
    assert ("oct_pyramid" in [task.name for task in alone]) == ("pyramid" in steps)


def emptied(subject):
    """Images that are emptied, with the records that are waited for."""
    found = [task.reads for task in list_tasks(subject) if task.step == "empty"]
    return {reads["image"][0]: " ".join(reads["records"]) for reads in found}


def test_an_image_is_emptied_when_all_that_read_it_have_ended():
    assert emptied(MOSAICS) == {}
    subject = replace(MOSAICS, items=["s1"], empties_images=True)
    assert emptied(subject) == {
        "a/s1_resample": "a/s1_stitch_metrics.json",
        "a/s1_stitch": "a/stack_metrics.json",
        "a/stack": "a/n4_metrics.json",
    }
    # PYRAMID shares files with STACK's volume, which may also be the result.
    for steps in (["stitch", "stack", "pyramid"], ["stitch", "stack"]):
        assert emptied(replace(subject, steps=steps)) == {"a/s1_stitch": "a/stack_metrics.json"}
    several = replace(subject, channels=TWO, steps=["stack", "n4"], shares_tissue=True)
    assert emptied(several) == {
        "a/stack": "a/n4_metrics.json a/red_n4_metrics.json",
        "a/red_stack": "a/red_n4_metrics.json",
    }
