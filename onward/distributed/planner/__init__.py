"""Plan a distributed run before it starts: memory, traffic and time of each layout."""
