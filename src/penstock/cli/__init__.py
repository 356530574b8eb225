"""The command line.  Each command is one file; `main` puts them together."""
