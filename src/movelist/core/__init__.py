"""Words and maths: no file, no clock, no printing."""
