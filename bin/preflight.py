#!/usr/bin/env python3
"""Check a run's parameters and inputs before any work is queued, and write its plans."""

from octane.processes.preflight.command import main

if __name__ == "__main__":
    main()
