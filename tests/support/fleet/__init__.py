"""Remote stores for tests: real servers on this machine, and faults on their way."""
