"""Block graphs in this process: the calls of a model's repeated blocks, by graphs or eager, inside its own forward."""
