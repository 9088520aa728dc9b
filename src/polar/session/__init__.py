"""The life of one session: pipeline, init, run, postrun."""
