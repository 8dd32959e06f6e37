"""REPORT: pages on subjects and cohorts."""
