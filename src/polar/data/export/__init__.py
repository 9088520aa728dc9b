"""Data sets out of stored sessions: what is chosen, in which format, and the files."""
