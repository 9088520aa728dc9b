"""The `sglang` engine."""
