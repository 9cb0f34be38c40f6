"""What a run leaves behind: figures, a page, and the comparison of runs."""
