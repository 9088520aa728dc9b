"""The rollout server: tasks in, sessions leased to nodes, results out. It meets all others over HTTP."""
