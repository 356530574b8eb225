"""Ollama's API, for tools that know nothing else."""
