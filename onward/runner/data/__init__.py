"""Read data from files and from memory, and make batches of it."""
