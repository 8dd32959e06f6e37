#!/usr/bin/env python3
"""Say how a run ended, as subworkflows/completion.nf asks."""

from octane.tools.summary.command import main

if __name__ == "__main__":
    main()
