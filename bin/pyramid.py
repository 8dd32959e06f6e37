#!/usr/bin/env python3
"""Write a volume as OME-Zarr with several resolutions."""

from octane.processes.pyramid.command import main

if __name__ == "__main__":
    main()
