"""Scores a session with the verifier of a Harbor task folder."""
