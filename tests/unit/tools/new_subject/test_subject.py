"""A subject's config states known settings and documents the others."""

import re

from octane.processes.preflight.parameters import entries
from octane.tools.new_subject.subject import LEFT_OUT, Setting, config_text


def test_a_config_documents_every_parameter_of_a_subjects_run():
    text = config_text([], {})
    stated = re.findall(r"^    (?:// )?(\w+) = ", text, re.MULTILINE)
    wanted = [entry.name for entry in entries() if entry.name not in LEFT_OUT]
    assert sorted(stated) == sorted(wanted)
    words = " ".join(re.sub(r"^\s*// ?", "", line) for line in text.splitlines())
    for entry in entries():
        if entry.name in wanted:
            assert str(entry.info.description) in " ".join(words.split())


def test_the_template_states_parameters_that_exist(project):
    text = (project / "conf/subjects/template.config").read_text(encoding="utf-8")
    stated = re.findall(r"^    (?:// )?(\w+) = ", text, re.MULTILINE)
    assert stated
    assert {*stated} <= {entry.name for entry in entries()}


def test_no_text_can_leave_its_quotes_or_its_comment():
    nasty = 'it\'s \\ ${x} "é"\n} process { 😀'
    text = config_text([f"About {nasty}"], {"subject": Setting(nasty, [f"Found {nasty}."])})
    assert text.isascii() or all(
        line.lstrip().startswith("//") for line in text.splitlines() if not line.isascii()
    )
    assert (
        r"""    subject = 'it\'s \\ ${x} \"\u00e9\"\n} process { \ud83d\ude00'"""
        in text.splitlines()
    )
    lines = [line.strip() for line in text.splitlines()]
    assert not [line for line in lines if line.startswith("} process")]
    assert "\\" not in "".join(line for line in lines if line.startswith("//"))
