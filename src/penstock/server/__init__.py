"""What clients connect to: the APIs of OpenAI, Anthropic and llama.cpp over one engine."""
