"""Commands that make data sets."""
