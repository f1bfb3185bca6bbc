"""Games that can be played here."""
