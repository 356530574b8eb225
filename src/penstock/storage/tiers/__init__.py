"""Experts in a device's memory, in the host's and on disk, as one store: each is computed where that is soonest."""
