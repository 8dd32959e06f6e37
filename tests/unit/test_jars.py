"""The one jar that Nextflow starts from."""

import runpy
from zipfile import ZipFile


def test_one_jar_has_the_extensions_of_all_and_no_index_of_one(project, tmp_path):
    for name in ("one", "two"):
        with ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr("META-INF/INDEX.LIST", f"{name}.jar")
            jar.writestr("META-INF/extensions.idx", f"extension.{name}")
            jar.writestr("META-INF/services/Service", f"service.{name}\n")
            jar.writestr("same.class", name)
    merge = runpy.run_path(str(project / "tools/nextflow/merge_jars.py"))["merge"]
    merge(tmp_path, tmp_path / "merged")
    with ZipFile(tmp_path / "merged") as merged:
        assert "META-INF/INDEX.LIST" not in merged.namelist()
        found = merged.read("META-INF/extensions.idx").decode()
        assert found.split() == ["extension.one", "extension.two"]
        assert merged.read("META-INF/services/Service").split() == [b"service.one", b"service.two"]
        assert merged.read("same.class") == b"one"
