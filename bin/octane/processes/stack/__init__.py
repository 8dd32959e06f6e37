"""STACK: sections in one volume."""
