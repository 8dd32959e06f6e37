"""A task runs again when the code changes that it runs on, and only then."""

import ast
import re
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).resolve().parents[2]
STEPS = ("cohort", "phantom", "preflight", "resample", "stitch", "stack", "n4", "pyramid", "report")


def part_of(module):
    """The subpackage of a module, or its file where it is a step."""
    _, subpackage, *names = module.split(".")
    return f"steps/{names[0]}.py" if subpackage == "steps" and names else subpackage


@pytest.fixture(scope="module")
def imports():
    """The import graph of the package."""
    return grimp.build_graph("octane", cache_dir=None)


@pytest.mark.parametrize("step", [*STEPS, "cohort_report"])
def test_a_process_names_the_code_that_its_command_imports(imports, step):
    tree = ast.parse((PROJECT / "bin" / f"{step}.py").read_text(encoding="utf-8"))
    found = {
        module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (module := str(node.module)).startswith("octane.")
    }
    found |= {other for module in found for other in imports.find_upstream_modules(module)}
    functions = (PROJECT / "lib" / "functions.nf").read_text(encoding="utf-8")
    (named,) = re.findall(rf"^        {step}: '([^']*)',$", functions, re.MULTILINE)
    assert set(named.split()) == {part_of(module) for module in found if module.count(".") > 1}


def change(path, text):
    """Add a line to a file."""
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.mark.slow
def test_a_changed_word_runs_what_it_concerns(nextflow, copy_project, phantom, tmp_path):
    code = copy_project("edited")

    def run(*arguments):
        made = nextflow(tmp_path, "-stub", "--input", phantom / "mosaics", *arguments, code=code)
        assert made.code == 0, made.output
        return made.processes("COMPLETED")

    everything = {"PREFLIGHT", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}
    assert run() == everything
    (page,) = (code / "bin" / "octane" / "report" / "templates").glob("report.html.j2")
    change(page, "<!-- a word -->\n")
    assert run("-resume") == {"REPORT"}
    change(code / "bin" / "octane" / "n4" / "fit.py", "# a word\n")
    assert run("-resume") == {"N4", "PYRAMID", "REPORT"}
    change(code / "bin" / "octane" / "core" / "arrays.py", "# a word\n")
    assert run("-resume") == everything
