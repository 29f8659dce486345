"""Where graphs come from: copies beside checkpoints, saved pipelines, bundles, remote stores. All lead to the home."""
