"""Each task is keyed by the code that it runs, so that a change runs it again (test_resume)."""

import ast
import re
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).resolve().parents[2]
FUNCTIONS = (PROJECT / "lib" / "functions.nf").read_text(encoding="utf-8")
LINES = re.sub(r"' \+\n *'", "", FUNCTIONS)
NAMED = dict(re.findall(r"^        (\w+): '([^']*)',$", LINES, re.MULTILINE))
"""Parts of the package named by each process."""


@pytest.fixture(scope="module")
def imports():
    """The import graph of the package."""
    return grimp.build_graph("octane", cache_dir=None)


def test_every_process_names_its_code():
    modules = {path.stem for path in (PROJECT / "modules").glob("*.nf")}
    assert NAMED.keys() == modules


@pytest.mark.parametrize("step", NAMED)
def test_a_process_names_the_code_that_its_command_imports(imports, step):
    tree = ast.parse((PROJECT / "bin" / f"{step}.py").read_text(encoding="utf-8"))
    found = {
        module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (module := str(node.module)).startswith("octane.")
    }
    found |= {other for module in found for other in imports.find_upstream_modules(module)}
    files = {
        f"{module.removeprefix('octane.').replace('.', '/')}.py"
        for module in found
        if module.count(".") > 1
    }
    covered = {
        part: {file for file in files if Path(file).is_relative_to(part)}
        for part in NAMED[step].split()
    }
    assert sorted(files.difference(*covered.values())) == []
    assert [part for part, own in covered.items() if not own] == []
