"""The operations the model is made of, on torch tensors.  `reference` is plain torch: slow, short, and the
definition that every faster implementation is tested against."""
