"""The engine: options, sessions, sampling, generation.  Everything here speaks token ids."""
