"""Simulate the steps of a distributed run: when each process computes, sends and waits."""
