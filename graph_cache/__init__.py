"""Graphs on disk: keys, manifests, folders, look-ups and publishing. Knows files, not compilers or ComfyUI.

`store.Store` is the one door for others, and each module behind it holds one concept: `trust` asks whose an entry is,
`crash` what dead processes left behind, and `sharing`, which the store does not know, makes and reads bundles.
"""
