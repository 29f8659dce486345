"""ComfyUI without a browser, in this process or as a server, with small models: for the demo, benchmarks and tests."""
