"""Pages for a browser: the viewer of a session, as one file or served from a run on disk."""
