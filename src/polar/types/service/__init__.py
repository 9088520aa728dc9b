"""What server, nodes and clients send each other over HTTP."""
