"""What every package uses: shapes, errors, memory, torch's private names."""
