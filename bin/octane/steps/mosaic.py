"""MOSAIC: the microscope's tiles in files, written as mosaic grids."""
