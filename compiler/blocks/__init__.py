"""Block graphs: repeated blocks of a model, how they are called, and what of that one graph for all sizes serves."""
