"""The config of a subject, from its data."""
