"""What processes leave behind that die or fail: crash markers, unfinished files, quarantined entries, failures."""
