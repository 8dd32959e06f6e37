#!/usr/bin/env python3
"""Stack the sections of a subject into one volume."""

from octane.processes.stack.command import main

if __name__ == "__main__":
    main()
