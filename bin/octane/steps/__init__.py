"""One module for each process or command."""
