#!/usr/bin/env python3
"""Make a synthetic serial-section OCT subject: mosaic grids, tile positions and ground truth."""

from octane.processes.phantom.command import main

if __name__ == "__main__":
    main()
