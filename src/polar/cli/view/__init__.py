"""The command that shows sessions in a browser."""
