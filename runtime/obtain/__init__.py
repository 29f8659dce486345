"""Where graphs come from: restored, compiled, deferred, refused after a failure, and what makes room for them."""
