"""The `llamacpp` engine: a llama.cpp server."""
