"""Figures, pictures, HTML pages and the crate."""
