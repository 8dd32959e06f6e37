"""Commands around the workflow."""
