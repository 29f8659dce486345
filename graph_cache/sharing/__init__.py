"""Giving graphs to others and taking theirs over: bundles, export, import. Only commands and pipelines reach it."""
