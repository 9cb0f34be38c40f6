"""A parameter server: workers that come and go push gradients, one process updates the weights."""
