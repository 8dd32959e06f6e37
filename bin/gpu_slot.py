#!/usr/bin/env python3
"""Run a command on a share of a GPU, or show who holds and who awaits one."""

from octane.gpu.command import main

if __name__ == "__main__":
    main()
