"""What the user sees of a run: texts on nodes, badges, events, progress."""
