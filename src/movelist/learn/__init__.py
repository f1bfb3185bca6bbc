"""The network and its update."""
