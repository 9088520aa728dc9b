"""Gateway nodes in a Slurm job: one batch script."""
