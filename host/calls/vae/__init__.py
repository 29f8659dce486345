"""ComfyUI's VAE: the hook on its calls, and what only a VAE needs: tiles, changing resolutions, values out of range."""
