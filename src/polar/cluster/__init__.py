"""Where gateway nodes run: on this machine, placed by Ray, Kubernetes or Slurm. No other part imports these."""
