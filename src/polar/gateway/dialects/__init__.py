"""One file per wire format: request to canonical chat, canonical reply to bytes."""
