"""Each task is keyed by the code that it runs, so that a change runs it again (test_resume)."""

import re
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).resolve().parents[2]
FLATS = PROJECT / "bin" / "octane" / "processes"
PROCESSES = sorted(path.parent.name for path in FLATS.glob("*/command.py"))
DOOR = r"(parameters|record|layout\w*)"
"""Names of a process's modules that another process may import."""


@pytest.fixture(scope="module")
def imports():
    """The import graph of the package."""
    return grimp.build_graph("octane", cache_dir=None)


def test_every_process_has_a_folder():
    modules = {path.stem for path in (PROJECT / "modules").glob("*.nf")}
    # The page of a cohort is REPORT's.
    assert modules - {"cohort_report"} == {*PROCESSES}


def test_the_workflow_knows_the_same_doors():
    assert rf"/processes\/\w+\/{DOOR}([.]py|\/.*)/" in (PROJECT / "lib/functions.nf").read_text()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_imports_shared_code_its_folder_and_doors(imports, name):
    home = f"octane.processes.{name}"
    own = {home, *imports.find_descendants(home)}
    loaded = {other for module in own for other in imports.find_upstream_modules(module)}
    others = {
        module for module in loaded - own if re.match(r"octane\.(processes|tools)\.\w+\.", module)
    }
    if name == "preflight":
        others = {module for module in others if not module.startswith("octane.processes.")}
    door = re.compile(rf"octane\.processes\.\w+\.{DOOR}(\.\w+)?")
    assert sorted(module for module in others if not door.fullmatch(module)) == []
