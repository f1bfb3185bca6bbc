"""Episodes: what was seen, what was legal, what was chosen, what it earned."""
