"""Load tests of a server: open and closed loop, latency percentiles, `onward bench --server`."""
