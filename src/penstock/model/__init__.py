"""DeepSeek-V4: the forward pass, layer by layer.  Knows nothing of text, HTTP or where weights come from."""
