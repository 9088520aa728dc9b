"""What engines share whose inference server is reached over HTTP."""
