"""CHANNELS: volumes joined as the channels of one image."""
