"""The `bubblewrap` runtime: one namespace holder per session, one bubblewrap process per command."""
