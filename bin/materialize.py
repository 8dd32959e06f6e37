#!/usr/bin/env python3
"""Replace links in published results by real files, or verify the results."""

from octane.tools.materialize.command import main

if __name__ == "__main__":
    main()
