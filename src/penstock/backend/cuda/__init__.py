"""NVIDIA GPUs: CUDA C++ kernels kept as source, compiled for the card at hand, launched from Python.

Read in this order: `layouts` (how weights lie on the card), `kernels/` (what is computed), `compile` (source →
machine code, cached on disk), `launch` (machine code → stream or graph); then the kernels as typed calls: `weights`
(repacking), `inputs`, `dense` and `experts` (products), `hyper`, `attention`, `plain` (the same for any shape) and
`sample` (the rest of a step).  On top of them: `placed` (what a stored weight becomes), `memory` and `states`
(sequences), `deepseek_v4` (the ops of that model, as launches that are recorded and repeated), `backend` (all of it
together).
"""
