"""What a node says about itself to those who watch machines: metrics and readiness, on a listener of their own."""
