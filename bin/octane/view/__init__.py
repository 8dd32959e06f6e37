"""Results shown in a browser, read from this machine."""
