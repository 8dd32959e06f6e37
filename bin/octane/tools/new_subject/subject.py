"""Nextflow config of a subject: every parameter with its description, some with a value.

Parameters without a value are commented out, with their default.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octane.processes.preflight.parameters import STEPS, Entry, entries
from octane.processes.preflight.schema import as_groovy, as_plain

WIDTH = 94
"""Characters of a comment line; the indent brings it to 100."""

LEFT_OUT = ("help", "samplesheet", "phantom")
"""Parameters of other kinds of run, left out of a subject's config."""

FIRST_GROUP = (
    "subject",
    "input",
    "outdir",
    "resolution",
    "overlap",
    "positions",
    "displacements",
    "section_thickness",
    "section_surface",
    "section_level",
    "allow_missing_sections",
    "exclude_sections",
    "only_sections",
    "flip_sections",
    "input_unit",
    "orientation",
    "scratch_dir",
    "gpu_count",
    "gpu_slots",
)
"""Parameters of the first group, in order."""

CONFIG_END = """\
}

// Writes Nextflow's trace, timeline, report and DAG to the outdir above: keep this line below it.
includeConfig "${projectDir}/conf/pipeline_info.config"
"""


@dataclass(frozen=True)
class Setting:
    """Value of a parameter, with sentences on its origin.

    With ``stated`` False it is commented out: a suggestion for the user to decide on.
    """

    value: object
    origin: Sequence[str] = ()
    stated: bool = True


def _wrap_comment(text: str) -> list[str]:
    # A line break in a file name would end the comment, and a backslash start an escape.
    safe = "".join(sign if sign.isprintable() else " " for sign in text).replace("\\", "/")
    lines = textwrap.wrap(safe, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f"// {line}" for line in lines]


def _parameter_lines(entry: Entry, setting: Setting | None) -> list[str]:
    meaning = f"{entry.info.description}{f' [{entry.unit}]' if entry.unit else ''}"
    setting_or_default = setting or Setting(entry.default, stated=False)
    lines = [line for text in (meaning, *setting_or_default.origin) for line in _wrap_comment(text)]
    mark = "" if setting_or_default.stated else "// "
    return [*lines, f"{mark}{entry.name} = {as_groovy(as_plain(setting_or_default.value))}"]


def config_text(about: Sequence[str], settings: Mapping[str, Setting]) -> str:
    """Write a subject's config: sentences at its head, then all parameters with their settings."""
    remaining = {entry.name: entry for entry in entries() if entry.name not in LEFT_OUT}
    groups = {"This subject": [remaining.pop(name) for name in FIRST_GROUP]}
    for entry in remaining.values():
        groups.setdefault(STEPS[entry.step].title, []).append(entry)
    lines = [*(line for text in about for line in _wrap_comment(text)), "", "params {"]
    for title, group in groups.items():
        lines += [f"    // ---- {title} ----", ""]
        for entry in group:
            lines += [
                *(f"    {line}" for line in _parameter_lines(entry, settings.get(entry.name))),
                "",
            ]
    return "\n".join([*lines[:-1], CONFIG_END])
