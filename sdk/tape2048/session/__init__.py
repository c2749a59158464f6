"""Sessions: one recorded directory, opened, checked, locked against removal."""
