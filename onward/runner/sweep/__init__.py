"""Search for the settings of a run: trials, workers, pruning, and a page of what mattered."""
