"""Loaded graphs: bound to live weights, judged at first use and now and then later, run."""
