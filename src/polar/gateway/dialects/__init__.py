"""A folder for each wire format: request to canonical chat, canonical reply to bytes."""
