#!/usr/bin/env python3
"""Put the jars of a folder into one.

    merge_jars.py FOLDER JAR

Groovy asks for hundreds of classes that do not exist, and Java then looks into every jar and checks
the signatures of some: one jar without signatures takes a tenth off Nextflow's start. A class that
is in two jars is taken from the first by name.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

# Groovy knows one module in each of these, so that one module must name the classes of all.
EXTENSIONS = (
    "META-INF/services/org.codehaus.groovy.runtime.ExtensionModule",
    "META-INF/groovy/org.codehaus.groovy.runtime.ExtensionModule",
)
KEYS = ("extensionClasses", "staticExtensionClasses")
# An index of a jar would send Java to that jar for each class that is not here.
DROPPED = ("/", ".SF", ".RSA", ".DSA", ".MF", "/INDEX.LIST")


def merge(folder: Path, target: Path) -> None:
    """Write `target` with all files of the jars in `folder`."""
    services: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {key: [] for key in KEYS}
    written = set()
    with ZipFile(target, "w") as merged:
        for jar in map(ZipFile, sorted(folder.glob("*.jar"))):
            for name in jar.namelist():
                if name in EXTENSIONS:
                    for key, _, value in (
                        line.partition("=") for line in jar.read(name).decode().splitlines()
                    ):
                        if key in KEYS and value:
                            classes[key] += value.split(",")
                elif name.endswith(DROPPED):
                    continue
                elif name.startswith(("META-INF/services/", "META-INF/extensions.idx")):
                    services.setdefault(name, []).append(jar.read(name).decode())
                elif name not in written:
                    written.add(name)
                    merged.writestr(name, jar.read(name))
        for name, texts in services.items():
            merged.writestr(name, "\n".join(texts))
        module = [f"moduleName={target.stem}", "moduleVersion=1"]
        module += [f"{key}={','.join(values)}" for key, values in classes.items()]
        merged.writestr(EXTENSIONS[1], "\n".join(module))


if __name__ == "__main__":
    merge(Path(sys.argv[1]), Path(sys.argv[2]))
