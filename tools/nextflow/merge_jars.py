#!/usr/bin/env python3
"""Put the libraries in a folder of Nextflow's jars into one jar, libraries.jar.

    merge_jars.py FOLDER

Groovy asks for hundreds of classes that do not exist, and Java then looks into every jar and checks
the signatures of some: with one jar without signatures Nextflow starts sooner. Its own jars stay as
they are, because it opens them again for each of its templates. A class that is in two jars is
taken from the first by name.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

OWN = ("nextflow-", "nf-")
# Groovy knows one module in each of these, so that one module must name the classes of all.
EXTENSIONS = (
    "META-INF/services/org.codehaus.groovy.runtime.ExtensionModule",
    "META-INF/groovy/org.codehaus.groovy.runtime.ExtensionModule",
)
KEYS = ("extensionClasses", "staticExtensionClasses")
# An index of a jar would send Java to that jar for each class that is not here.
DROPPED = ("/", ".SF", ".RSA", ".DSA", ".MF", "/INDEX.LIST")


def merge(folder: Path) -> None:
    """Replace the libraries in a folder by one jar of all their files."""
    services: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {key: [] for key in KEYS}
    written = set()
    libraries = sorted(jar for jar in folder.glob("*.jar") if not jar.name.startswith(OWN))
    with ZipFile(folder / "libraries.jar", "w") as merged:
        for jar in map(ZipFile, libraries):
            for name in jar.namelist():
                if name in EXTENSIONS:
                    for key, _, value in (
                        line.partition("=") for line in jar.read(name).decode().splitlines()
                    ):
                        if key in KEYS and value:
                            classes[key] += value.split(",")
                elif name.endswith(DROPPED):
                    continue
                elif name.startswith("META-INF/services/"):
                    services.setdefault(name, []).append(jar.read(name).decode())
                elif name not in written:
                    written.add(name)
                    merged.writestr(name, jar.read(name))
        for name, texts in services.items():
            merged.writestr(name, "\n".join(texts))
        module = ["moduleName=libraries", "moduleVersion=1"]
        module += [f"{key}={','.join(values)}" for key, values in classes.items()]
        merged.writestr(EXTENSIONS[1], "\n".join(module))
    for jar in libraries:
        jar.unlink()


if __name__ == "__main__":
    merge(Path(sys.argv[1]))
