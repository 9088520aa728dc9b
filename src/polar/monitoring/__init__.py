"""What the rollout server and a gateway node share of being watched: metrics, readiness, the event loop's lag."""
