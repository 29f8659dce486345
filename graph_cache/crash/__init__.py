"""What processes leave behind that die or fail: crash markers and unfinished files."""
