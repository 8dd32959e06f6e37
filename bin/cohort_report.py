#!/usr/bin/env python3
"""Write the page over several subjects from the JSON twins of their reports."""

from octane.processes.report.cohort_command import main

if __name__ == "__main__":
    main()
