"""Finding, leasing and using a GPU."""
