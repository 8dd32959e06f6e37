"""RESAMPLE: tiles or a volume at another voxel size."""
