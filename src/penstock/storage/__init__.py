"""The routed experts: nine tenths of a model's bytes, of which a token needs a fortieth."""
