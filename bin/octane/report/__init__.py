"""Figures, pictures and HTML pages."""
