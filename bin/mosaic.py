#!/usr/bin/env python3
"""Write the microscope's tiles as mosaic grids, one OME-Zarr per section."""

from octane.processes.mosaic.command import main

if __name__ == "__main__":
    main()
