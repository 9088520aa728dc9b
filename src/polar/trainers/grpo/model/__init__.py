"""The policy as the trainer computes it: traces in packs, and their logprobs."""
