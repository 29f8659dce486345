"""Compiled graphs in this process: loading, binding, checking and running them."""
