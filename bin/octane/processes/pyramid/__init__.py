"""PYRAMID: a volume at several resolutions."""
