"""The `torch` engine: PyTorch and transformers in a process of its own, whose weights a trainer replaces while it
runs."""
