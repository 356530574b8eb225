"""Clients that people use already, and how each is told of a Penstock server."""
