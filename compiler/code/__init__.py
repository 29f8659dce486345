"""Which code a graph was made of: the architecture's fingerprint, and the functions that ran with their digests."""
