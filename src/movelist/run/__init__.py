"""One training from start to end."""
