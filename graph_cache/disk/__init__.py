"""What graphs take on the disk: which there are, which are in use or pinned, and which go when a budget is reached."""
