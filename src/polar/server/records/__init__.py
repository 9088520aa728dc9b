"""What the server's database holds: one module for each kind of record, and the tables."""
