"""Parameters, command line and samplesheets."""
