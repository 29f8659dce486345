"""Windows' Python under wine: what wine lacks, and how tests start it."""
