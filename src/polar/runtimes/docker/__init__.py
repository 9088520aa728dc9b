"""The `docker` runtime: one container for each session, over the Docker Engine API."""
