"""Base images for runtimes: built from packages, kept in the cache, loaded into the Docker Engine."""
