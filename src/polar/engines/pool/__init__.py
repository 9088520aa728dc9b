"""The `pool` engine."""
