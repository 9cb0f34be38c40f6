"""Change nodes of a graph to a 16-bit type: which values change, and where Casts are needed."""
