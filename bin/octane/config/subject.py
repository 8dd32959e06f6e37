"""A subject's config for Nextflow: every parameter with its meaning, some with a value.

One template makes both the file that a person copies and the file that bin/new_subject.py writes.
A parameter without a value is a comment with its default.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octane.config.params import STEPS
from octane.config.schema import Entry, as_groovy, entries, plain

TEMPLATE = "conf/subjects/template.config"
"""The file that :func:`template` is written to."""

WIDTH = 94
"""Characters of a comment; with its margin a line has 100."""

LEFT_OUT = ("help", "samplesheet", "phantom", "phantom_seed")
"""Parameters of other kinds of run, which no subject's config states."""

FIRST = (
    "subject",
    "input",
    "outdir",
    "resolution",
    "overlap",
    "positions",
    "section_thickness",
    "section_surface",
    "allow_missing_sections",
    "input_unit",
    "scratch_dir",
    "max_cpus",
    "max_memory",
    "gpu_count",
    "gpu_slots",
)
"""Parameters of the first group, in order."""

CLOSING = """\
}

// Nextflow's trace, timeline, report and DAG go into the outdir above: keep this line below it.
includeConfig "${projectDir}/conf/pipeline_info.config"
"""


@dataclass(frozen=True)
class Setting:
    """Value of a parameter, and sentences on its origin.

    With ``stated`` False it stays a comment: a suggestion for a person to decide on.
    """

    value: object
    found: Sequence[str] = ()
    stated: bool = True


def _wrapped(text: str) -> list[str]:
    # A line break or a backslash in a file's name must not end the comment or be read as an escape.
    safe = "".join(sign if sign.isprintable() else " " for sign in text).replace("\\", "/")
    wrapped = textwrap.wrap(safe, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f"// {line}" for line in wrapped]


def _field(entry: Entry, setting: Setting | None) -> list[str]:
    meaning = f"{entry.info.description}{f' [{entry.unit}]' if entry.unit else ''}"
    shown = setting or Setting(entry.default, stated=False)
    lines = [line for text in (meaning, *shown.found) for line in _wrapped(text)]
    mark = "" if shown.stated else "// "
    return [*lines, f"{mark}{entry.name} = {as_groovy(plain(shown.value))}"]


def config_text(about: Sequence[str], settings: Mapping[str, Setting]) -> str:
    """Write a subject's config: sentences at its head, then all parameters with what is known."""
    known = {entry.name: entry for entry in entries() if entry.name not in LEFT_OUT}
    groups = {"This subject": [known.pop(name) for name in FIRST]}
    for entry in known.values():
        groups.setdefault(STEPS[entry.step].title, []).append(entry)
    lines = [*(line for text in about for line in _wrapped(text)), "", "params {"]
    for title, group in groups.items():
        lines += [f"    // ---- {title} ----", ""]
        for entry in group:
            lines += [*(f"    {line}" for line in _field(entry, settings.get(entry.name))), ""]
    return "\n".join([*lines[:-1], CLOSING])


def template() -> str:
    """Write ``conf/subjects/template.config``, which a person fills in."""
    return config_text(
        [
            "One subject: copy to conf/subjects/NAME.config, fill in, and run",
            "    nextflow run main.nf -c conf/subjects/NAME.config",
            "bin/new_subject.py DATA --name NAME looks at the data and writes such a file itself.",
            "What is a comment has the default that it shows. The command line wins.",
            "Generated from bin/octane/config/params.py by `make generate`; edit that, not this.",
        ],
        {
            "subject": Setting("NAME"),
            "input": Setting("/data/NAME/mosaics"),
            "outdir": Setting("/data/NAME/octane"),
            "resolution": Setting("10"),
            "overlap": Setting("0.2", stated=False),
            "section_thickness": Setting(200, stated=False),
        },
    )
