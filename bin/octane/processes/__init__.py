"""One folder for each process of the workflow."""
