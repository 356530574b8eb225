"""Getting models: from Hugging Face to this machine, and finding those that are here."""
