"""The `bubblewrap` runtime: unprivileged namespaces around each session."""
