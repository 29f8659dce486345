"""Calls of models on their way to graphs, as a whole or block by block, and what is told of them."""
