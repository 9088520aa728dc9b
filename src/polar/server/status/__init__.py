"""What the server says about itself to those who watch machines: metrics and readiness."""
