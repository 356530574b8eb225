"""The CPU: native kernels in which every row is computed by itself, in one fixed order.

How a prompt is cut into chunks, who shares the step and how many threads help cannot change a bit of any result.
"""
