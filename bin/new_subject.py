#!/usr/bin/env python3
"""Inspect a subject's data, and write its config."""

from octane.tools.new_subject.command import main

if __name__ == "__main__":
    main()
