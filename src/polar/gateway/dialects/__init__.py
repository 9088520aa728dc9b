"""A folder per provider API: JSON requests to canonical chat, canonical replies to bytes."""
