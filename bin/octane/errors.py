"""The one exception that means: the input or a parameter is at fault, not the code."""

__all__ = ["OctaneError"]


class OctaneError(Exception):
    """One sentence for the person at the terminal: names the file or parameter and the remedy."""
