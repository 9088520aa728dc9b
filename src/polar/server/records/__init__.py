"""What the rollout server stores: one module for each kind of record, and their tables."""
