"""Commands about the rollout service: server, nodes, tasks."""
