#!/usr/bin/env python3
"""Resample a mosaic grid tile by tile, or a volume, to a target voxel size."""

from octane.processes.resample.command import main

if __name__ == "__main__":
    main()
