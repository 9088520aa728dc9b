"""Base images for runtimes: built from packages, kept in the cache, loaded into an engine."""
