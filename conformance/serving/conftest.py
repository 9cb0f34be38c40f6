"""The scripts of clients/ run in an environment of their own, which has the client libraries."""

collect_ignore = ["clients"]
