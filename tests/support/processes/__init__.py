"""Processes: lives of a server, what goes wrong in them, second processes that report, and what waits for them."""
