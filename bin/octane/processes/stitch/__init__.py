"""STITCH: tiles placed and blended."""
