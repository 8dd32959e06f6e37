"""Tiles as the microscope wrote them: their files, names, order and places."""
