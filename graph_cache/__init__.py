"""Graphs on disk: keys, manifests, folders, look-ups and publishing. Knows files, not compilers or ComfyUI.

`store.Store` is the one door for others; each module behind it holds one concept.
"""
