#!/usr/bin/env python3
"""Process sections while the microscope images them, and warn of faults."""

from octane.tools.watch.command import main

if __name__ == "__main__":
    main()
