"""Rendering, the call forest, bridging, exactness checks. Knows no engine."""
