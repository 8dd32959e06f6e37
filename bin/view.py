#!/usr/bin/env python3
"""View results in a browser."""

from octane.tools.view.command import main

if __name__ == "__main__":
    main()
