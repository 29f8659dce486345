"""Whether a module, its code or torch's modes are others than those that a graph was made of."""
