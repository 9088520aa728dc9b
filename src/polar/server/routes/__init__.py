"""The HTTP routes. They check the form of a request; the records do the rest."""
