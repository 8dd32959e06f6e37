#!/usr/bin/env python3
"""Join volumes of one subject as the channels of one OME-Zarr image."""

from octane.processes.channels.command import main

if __name__ == "__main__":
    main()
