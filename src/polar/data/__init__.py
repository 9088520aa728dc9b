"""Task files, and a source of their sessions."""
