"""The gateway's HTTP side: connections, routes, bodies and their limits."""
