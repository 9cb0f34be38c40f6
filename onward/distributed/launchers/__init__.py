"""Find this process's rank, and start the processes of a run."""
