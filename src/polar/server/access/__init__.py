"""Who may do what at the server: tokens, logins, and the record of control actions."""
