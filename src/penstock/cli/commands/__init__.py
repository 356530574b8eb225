"""The flags of every command, by its name.  What takes long to load is imported by the function when it is called, so
that help and mistakes are answered at once."""
