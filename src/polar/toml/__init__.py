"""TOML beyond the standard library: the line of a field, and writing values."""
