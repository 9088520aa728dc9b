"""The proxy at the model-API boundary: slots, one model call start to end, dialects."""
