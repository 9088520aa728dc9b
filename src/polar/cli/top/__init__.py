"""`polar top`: a rollout service at a glance, in a terminal."""
