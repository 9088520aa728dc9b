"""Harbor task folders, as Terminal-Bench 2 has them, as tasks."""
