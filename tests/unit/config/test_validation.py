"""Scratch folders and further words from user input."""

import os

import pytest
from refusals import refused

from octane.config.validation import (
    as_flips,
    as_ranges,
    read_scratch,
    require_scratch,
    section_flips,
    section_ranges,
)
from octane.core.errors import InputError


@pytest.mark.parametrize("text", ["7 12-14 3", "3,7, 12-13 ,14", "12-14,13 07 3-3"])
def test_section_numbers_are_separated_by_blanks_or_commas(text):
    numbers = {number for own in section_ranges(text) for number in own}
    assert numbers == {3, 7, 12, 13, 14}
    assert as_ranges(numbers) == "3 7 12-14"


@pytest.mark.parametrize("text", ["", "7-", "14-12", "a", "1:3", "-1", "1.5", "1-20240101"])
def test_other_section_numbers_are_refused(text):
    with refused("'7 12-14'", error=ValueError):
        section_ranges(text)


@pytest.mark.parametrize(
    "text", ["3: x, 7-8: yx, 9:y", "9: Y 8:xy,7 : yx 3:x", " 3:x,7:yx,8:yx,\n9:y "]
)
def test_flips_are_axes_by_section(text):
    flips = section_flips(text)
    assert flips == {3: "x", 7: "yx", 8: "yx", 9: "y"}
    assert as_flips(flips) == "3: x, 7-8: yx, 9: y"


@pytest.mark.parametrize(
    "text", ["", "3", "x", "3: z", "3: xx", "3x", "3: x; 4: y", "x: 3", "3: x y"]
)
def test_other_flips_are_refused(text):
    with refused("'3: x, 7-9: yx'", error=ValueError):
        section_flips(text)


def test_two_flips_of_a_section_are_refused():
    with refused("section 3", error=ValueError):
        section_flips("3: x, 2-3: y")


def test_many_words_mean_the_work_directory_or_the_nodes_tmpdir():
    for value in (False, "false", "False", " NO ", "off", 0, "0", None, "null", ""):
        assert read_scratch(value) is False
    for value in (True, "true", "TRUE", "yes", "on", 1, "1"):
        assert read_scratch(value) is True


def test_a_folder_that_tasks_make_is_let_pass_and_not_made(monkeypatch, tmp_path):
    require_scratch(False)
    monkeypatch.delenv("TMPDIR", raising=False)
    require_scratch(True)
    require_scratch(f"{tmp_path}/new/")
    assert not (tmp_path / "new").exists()


def test_a_variable_is_looked_up_where_it_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    (tmp_path / "own").mkdir()
    require_scratch("${NODE_DISK}/own")
    with refused("--scratch_dir", "$NODE_DISK/other", "$NODE_DISK/other/", error=InputError):
        require_scratch("$NODE_DISK/other")
    # A folder that exists only on nodes is accepted.
    monkeypatch.setenv("NODE_DISK", "")
    require_scratch("$NODE_DISK/a")
    monkeypatch.delenv("NODE_DISK")
    require_scratch("$NODE_DISK/a")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("{}/scrtach", ("/scrtach ", "/scrtach/)")),
        ("{}/no/such/", ("/no/such/ ",)),
        ("{}/file", ("/file ",)),
        (True, ("TMPDIR, ", "/file)")),
        *(
            (path, (f" {path} ", "${NAME}"))
            for path in ("relative/a", "/with blank", "/a;b", "${A:-/tmp}", "/a$", "5", "~/a")
        ),
    ],
)
def test_a_folder_that_tasks_cannot_use_is_refused(monkeypatch, tmp_path, value, names):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/file")
    with refused("--scratch_dir", *names, error=InputError):
        require_scratch(value if value is True else value.replace("{}", str(tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with refused("--scratch_dir", tmp_path, error=InputError):
            require_scratch(str(tmp_path))
    finally:
        tmp_path.chmod(0o700)
