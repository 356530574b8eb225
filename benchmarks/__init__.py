"""Numbers that the documentation quotes: each is printed by one of these commands."""
