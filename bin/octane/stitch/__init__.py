"""Placing, registering and blending tiles."""
