"""Defaults of parameters that modules without pydantic need as well."""

AUTO_TIMEOUT = 300.0
"""Seconds that ``auto`` waits before it takes the CPU."""
