#!/usr/bin/env python3
"""Correct a volume's bias field with N4, ITK's algorithm and options."""

from octane.processes.n4.command import main

if __name__ == "__main__":
    main()
