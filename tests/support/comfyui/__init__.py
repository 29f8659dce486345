"""For tests that run ComfyUI: its ControlNets, graphs of its small models, and workflows as its frontend saves them."""
