"""The `local` runtime: plain processes of the node's user, without a container."""
