"""Model files: formats, one validated index over all of them, conversion and synthetic models.

A file is opened with :func:`penstock.weights.opening.open_checkpoint`.  Bytes stay where they are: every
weight is a view into a mapped file until a kernel decodes the rows that it needs.
"""
