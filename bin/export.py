#!/usr/bin/env python3
"""Write a volume, or a part of it, for other programs."""

from octane.tools.export.command import main

if __name__ == "__main__":
    main()
