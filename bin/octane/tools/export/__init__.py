"""Volumes written for other programs."""
