"""Where the server keeps the uploads of sessions: a folder, or an S3-compatible store."""
