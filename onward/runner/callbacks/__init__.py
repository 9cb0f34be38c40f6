"""What happens around the steps of a run: one callback per file."""
