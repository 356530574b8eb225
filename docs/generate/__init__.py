"""Pages that are made from the code.  `make docs` writes them all; tests fail when one is stale."""
