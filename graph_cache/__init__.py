"""Graphs on disk: keys, manifests, places, publishing and looking up. Knows files, not compilers or ComfyUI.

Trust (who may have written a graph) and the byte budget get modules of their own beside these.
"""
