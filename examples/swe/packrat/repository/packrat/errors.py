"""What is shown to the user instead of a traceback."""


class PackratError(Exception):
    """A message for the user."""
