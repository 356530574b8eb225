"""OpenAI's Responses API: items in, items out, and responses that are kept to go on from."""
