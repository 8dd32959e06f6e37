"""The last words of a run."""
