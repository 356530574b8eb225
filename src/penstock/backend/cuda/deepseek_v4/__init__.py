"""The ops of DeepSeek-V4 on a card."""
