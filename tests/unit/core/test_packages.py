"""Packages of others whose modules are loaded one by one."""

import json
import sys

import pytest

from octane.core.packages import defer


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose own code imports both of its modules."""
    folder = tmp_path / "several"
    folder.mkdir()
    text = "from several.one import NAME\nfrom several.two import *\nVERSION = 3\n"
    (folder / "__init__.py").write_text(text, encoding="utf-8")
    (folder / "one.py").write_text("NAME = 'one'\n", encoding="utf-8")
    (folder / "two.py").write_text("from several.one import NAME\nTWO = 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "several"
    for name in ("several", "several.one", "several.two"):
        sys.modules.pop(name, None)


def test_a_module_is_imported_without_the_others(package):
    defer(package)
    import several.one  # ty: ignore[import-not-found]

    assert several.one.NAME == "one"
    assert "several.two" not in sys.modules
    # What its own code defines is there all the same.
    assert (several.VERSION, several.TWO, several.two.TWO) == (3, 2, 2)
    with pytest.raises(AttributeError, match="nothing"):
        several.nothing  # noqa: B018


def test_a_package_that_is_loaded_stays_as_it_is(package):
    import several  # ty: ignore[import-not-found]

    defer(package)
    assert sys.modules["several"] is several
    assert several.VERSION == 3
    defer("no_such_package")
    assert "no_such_package" not in sys.modules


def test_the_codecs_are_loaded_alone_and_zarr_finds_all(run_python, tmp_path):
    compressed = {"compressor": {"id": "gzip", "level": 1}, "filters": None, "fill_value": 0}
    array = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C"}
    (tmp_path / ".zarray").write_text(json.dumps(array | compressed), encoding="utf-8")
    found = run_python(
        "import json, sys, octane.store.reader, octane.store.writer\n"
        "from pathlib import Path\n"
        "from octane.store.array import open_array\n"
        "print('numcodecs.registry' in sys.modules)\n"
        "folder = Path(sys.argv[1])\n"
        "files = {'zarr.json': None, '.zarray': json.loads((folder / '.zarray').read_text())}\n"
        "print(open_array(folder.parent, folder.name, files).metadata['compressor']['id'])\n",
        tmp_path,
    )
    assert found == "False\ngzip"
