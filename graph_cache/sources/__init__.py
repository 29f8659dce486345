"""Where graphs come from besides the home, and how they are given to others: folders, bundles, remote stores."""
