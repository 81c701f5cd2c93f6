"""One copy over every useful path of a node at once."""
