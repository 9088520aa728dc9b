"""Plug point: token ids in, sampled token ids and logprobs out."""
