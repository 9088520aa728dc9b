"""Commands about runs of this machine: run, look, replay, audit."""
