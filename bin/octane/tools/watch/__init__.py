"""Sections processed and judged while the microscope runs."""
