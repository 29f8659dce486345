"""Pages with figures in one file: what `onegraph bench --html` and, with pictures, the demo write."""
