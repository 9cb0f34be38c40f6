"""Write the job of a training run for Kubernetes, Ray or Slurm."""
