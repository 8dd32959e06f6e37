#!/usr/bin/env python3
"""Stitch the tiles of one section's mosaic grid into one image."""

from octane.processes.stitch.command import main

if __name__ == "__main__":
    main()
