"""The chat format: conversations to token ids and back."""
