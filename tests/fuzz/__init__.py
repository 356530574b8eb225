"""Fuzzing of everything that parses bytes from outside.

    python -m tests.fuzz --count 1000000            # all targets, a million inputs in all
    python -m tests.fuzz --target gguf --seed 7

Only a PenstockError may come out of a reader, quickly and without much memory.
"""
