"""Calls of ComfyUI's models, ControlNets and VAEs on their way to graphs: hooks, proxies, runs."""
