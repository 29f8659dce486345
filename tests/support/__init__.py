"""What tests of several layers share. ComfyUI itself, its server and its small models are in tools/headless."""
