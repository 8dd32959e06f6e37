"""Results in a browser."""
