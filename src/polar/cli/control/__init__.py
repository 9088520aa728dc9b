"""Commands that steer a running rollout service: nodes, drain, cancel, pause, resume, events."""
