"""Commands that steer a running rollout service: nodes, cancel, pause, resume, events."""
