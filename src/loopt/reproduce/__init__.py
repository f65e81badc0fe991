"""One file per experiment: its runs, its table and its figure."""
