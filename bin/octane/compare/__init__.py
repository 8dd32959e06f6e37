"""Overlaps and faces of images, compared."""
