"""What every op computes: plain torch in float64, a whole sequence at a time, one file per op.

Weights are decoded from their files and vectors taken from the specs of `penstock.backend.deepseek_v4`, so the same
specification serves every backend.
"""
