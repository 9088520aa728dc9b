"""Rows of SWE-bench and data sets like it, as tasks."""
