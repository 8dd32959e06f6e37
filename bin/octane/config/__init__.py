"""Parameters, command line and samplesheets."""

# Here, and not in params: leases need it where pydantic is not installed.
AUTO_TIMEOUT = 300.0
"""Seconds that ``auto`` waits for a GPU before it takes the CPU."""
