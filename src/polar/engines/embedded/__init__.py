"""The `embedded` engine: llama.cpp in a child process, for machines without a GPU."""
