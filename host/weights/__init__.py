"""Quantised weights of ComfyUI: what they consist of, and how a graph computes with them."""
