"""Small architectures of every family, each with a batch and a loss, to compare with eager."""
