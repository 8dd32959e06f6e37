"""The jar of the libraries with which Nextflow starts."""

import runpy
from zipfile import ZipFile


def test_one_jar_has_the_services_of_all_libraries_and_no_index_of_one(project, tmp_path):
    for name in ("one", "two", "nextflow-1"):
        with ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr("META-INF/INDEX.LIST", f"{name}.jar")
            jar.writestr("META-INF/services/Service", f"service.{name}\n")
            jar.writestr("same.class", name)
    runpy.run_path(str(project / "tools/nextflow/merge_jars.py"))["merge"](tmp_path)
    assert {jar.name for jar in tmp_path.iterdir()} == {"libraries.jar", "nextflow-1.jar"}
    with ZipFile(tmp_path / "libraries.jar") as merged:
        assert "META-INF/INDEX.LIST" not in merged.namelist()
        assert merged.read("META-INF/services/Service").split() == [b"service.one", b"service.two"]
        assert merged.read("same.class") == b"one"
