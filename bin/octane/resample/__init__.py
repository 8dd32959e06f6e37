"""Resampling: the operator and its three forms."""
