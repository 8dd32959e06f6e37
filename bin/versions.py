#!/usr/bin/env python3
"""Print the versions that a process ran with, in nf-core's versions.yml form.

Every task calls it, so it imports nothing that takes time.
"""

import sys

from octane.core.versions import versions

if __name__ == "__main__":
    lines = [f'"{sys.argv[1]}":', *(f"    {name}: {number}" for name, number in versions().items())]
    sys.stdout.write("\n".join(lines) + "\n")
