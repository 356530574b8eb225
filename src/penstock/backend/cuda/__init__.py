"""NVIDIA GPUs: CUDA C++ kernels kept as source, compiled for the card at hand, launched from Python.

Read in this order: `layouts` (how weights lie on the card), `kernels/` (what is computed), `compile` (source →
machine code, cached on disk), `launch` (machine code → stream or graph); then the kernels as typed calls: `weights`
(repacking), `inputs`, `dense` and `experts` (products), `hyper`, `attention` and `sample` (the rest of a step).
"""
