"""What the server answers below /onegraph/: one module for each subject."""
