"""PREFLIGHT: checks before any work, and the plan of a run."""
