"""Pictures and charts, as SVG and PNG."""
