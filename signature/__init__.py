"""Which calls a graph serves: their form, their sizes, what they ask of options. One language for all graphs."""
