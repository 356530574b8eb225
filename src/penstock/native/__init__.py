"""The C++ kernels (the .cpp and .h files of this folder), and their loader."""
