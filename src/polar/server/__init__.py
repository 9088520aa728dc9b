"""The rollout server: takes tasks, leases their sessions to nodes, and serves results. All over HTTP."""
