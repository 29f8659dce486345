"""Remote stores: graphs of trusted publishers, read through fsspec, verified, and kept in the local store."""
