"""N4: bias field correction."""
