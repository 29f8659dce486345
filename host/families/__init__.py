"""One module per model family that can be compiled."""
