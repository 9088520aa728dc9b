"""The `apptainer` runtime: one instance for each session."""
