"""Builders (plug-ins): a session's calls to traces for training."""
