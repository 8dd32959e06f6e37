#!/usr/bin/env python3
"""Write the report of a subject from the records and previews of its steps."""

from octane.processes.report.command import main

if __name__ == "__main__":
    main()
