"""The command of a run, the session that it resumes, and why it failed."""

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.tools.watch.command import split_words
from octane.tools.watch.runs import RunEnd, Workflow, read_parameters, session_of

WORDS = ["-profile", "slurm", "--tile_flip", "x", "--skip_n4", "--overlap=0.2", "-c", "a.config"]


def test_words_are_the_watchers_or_the_workflows():
    own = ["--outdir", "out", "--settle=5", "--last", "9"]
    mixed = ["tiles", *own[:2], *WORDS[:4], *own[2:], *WORDS[4:]]
    assert split_words(mixed) == [*own, "--", "tiles", *WORDS]
    assert read_parameters(WORDS) == {"tile_flip": "x", "skip_n4": "true", "overlap": "0.2"}
    assert read_parameters([]) == {}
    for word in ("--input", "--until=stitch", "-resume", "--samplesheet"):
        with refused(word.partition("=")[0], "bin/watch.py", error=InputError):
            split_words(["tiles", "--outdir", "out", word, "x"])
    with refused("-profile", error=InputError):
        split_words(["-profile", "slurm", "tiles", "--outdir", "out"])


def test_all_runs_are_one_session(tmp_path):
    workflow = Workflow(tmp_path / "tiles", tmp_path / "out", WORDS, tmp_path, tmp_path / "log")
    first = workflow.command("abc", 1, [1, 2, 3, 9])
    assert first[first.index("--only_sections") + 1] == "1-3 9"
    assert "-resume" not in first
    history = tmp_path / ".nextflow" / "history"
    history.parent.mkdir()
    lines = [
        f"time\t1s\t{name}\tOK\trev\t{name}-session\tcommand\n" for name in ("watch-abc-1", "x")
    ]
    history.write_text("".join(lines), encoding="utf-8")
    assert session_of(history, "other") is None
    whole = workflow.command("abc", 2, None)
    assert whole[-2:] == ["-resume", "watch-abc-1-session"]
    assert not {"--until", "--only_sections"} & {*whole}
    assert [word for word in whole if word in WORDS] == WORDS


def test_the_work_folder(tmp_path):
    given = (tmp_path, tmp_path, ["-w", "tasks"], tmp_path, tmp_path)
    assert Workflow(*given).work == tmp_path / "tasks"


@pytest.mark.parametrize(
    "output",
    [
        "Launching `main.nf`\n[ab/123456] Submitted process > X\nERROR ~ Error executing\nlong\n"
        "octane stopped: STITCH (a:section_03): bad.\n",
        "N E X T F L O W  ~  version 24\nLaunching `main.nf`\n[a3/5ab189] Submitted process > P\n"
        "STITCH (a:section_03): bad.\n\n -- Check '.nextflow.log' file for details\n",
    ],
)
def test_why_a_run_failed(output):
    assert RunEnd(1, output).sentence == "STITCH (a:section_03): bad."
    assert "7" in RunEnd(7, "").sentence
