"""The `local` runtime: commands of the node's own user, without a container."""
