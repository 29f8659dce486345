"""What other packs do to live models, where they do it, and models whose calls can be compared with eager's."""
