"""Entries and bundles of a store, made of a few bytes."""
