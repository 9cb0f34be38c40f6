"""Early exits: samples that are easy get their answer from an inner layer of the network."""
